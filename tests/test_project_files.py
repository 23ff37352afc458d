"""The files for those who contribute: workflows, forms, hooks, the development container."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib

import pytest
import yaml

from tests import PROJECT

WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (PROJECT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [PROJECT / ".github" / "ISSUE_TEMPLATE" / "config.yml"]),
    ],
)
def test_what_github_reads_is_as_it_wants_it(schema, files):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert files and done.returncode == 0, done.stdout


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_trust_no_name_that_may_move(workflow):
    """An action is named by the hash of its commit. Nothing may write unless a job says so."""
    content = yaml.safe_load(workflow.read_text())
    assert content["permissions"] == {"contents": "read"}
    used = re.findall(r"uses: (\S+)(.*)", workflow.read_text())
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) and re.fullmatch(r" # v\d+(\.\d+)*", comment), action


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_the_commands_of_the_project(workflow):
    """What isn't a system's own command is a target of the Makefile or a script that is there."""
    targets = set(re.findall(r"^([\w-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    lines = [
        step["run"]
        for job in yaml.safe_load(workflow.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    for words in (shlex.split(line) for text in lines for line in text.splitlines()):
        if words[0] == "make":
            assert words[1] in targets, words
        elif "/" in words[0]:
            assert (PROJECT / words[0]).is_file(), words


def test_hooks_are_the_tools_of_the_environment():
    (local,) = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"]
    tools = {hook["id"]: hook["entry"].split()[0] for hook in local["hooks"]}
    assert tools == {
        "ruff-format": ".venv/bin/ruff",
        "ruff": ".venv/bin/ruff",
        "clang-format": ".venv/bin/clang-format",
        "mypy": ".venv/bin/mypy",
    }
    for hook in local["hooks"]:
        assert hook["language"] == "system"


def test_the_development_container_makes_what_the_readme_makes():
    container = json.loads((PROJECT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make build"
    debian = "debian:12"
    assert container["image"] == debian
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()]
    assert {job["container"] for job in jobs if "container" in job} == {debian}


def test_make_help_has_every_target():
    told = subprocess.run(["make", "help"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)", (PROJECT / "Makefile").read_text(), re.MULTILINE)[1].split()
    targets = [name for name in phony if not name.startswith(".")]
    assert sorted(re.findall(r"^make ([\w-]+) ", told, re.MULTILINE)) == sorted(targets)
    assert all(len(line) < 180 for line in told.splitlines())


def test_everything_states_the_version_of_pyproject():
    """The tags of images in Compose, Kubernetes and on the pages, and the last section of the changelog."""
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    files = [PROJECT / "docker-compose.yml", *(PROJECT / "deploy").rglob("*"), *(PROJECT / "docs").glob("*.md")]
    found = {
        (file.name, tag)
        for file in files
        if file.is_file() and file.suffix in (".yml", ".yaml", ".md", ".Dockerfile")
        for tag in re.findall(r"\bopgate(?:-[a-z-]+)?:(?:\$\{VERSION:-)?(\d[\w.]*\d)", file.read_text())
    }
    assert {name for name, _ in found} >= {"docker-compose.yml", "deployment.yaml", "README.md"}
    assert {tag for _, tag in found} == {version}
    sections = re.findall(r"^## (\S+)", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(name for name in sections if name != "Unreleased") == version
    assert f"version {version}" in (PROJECT / "docs" / "compares.md").read_text()


@pytest.fixture
def release():
    spec = importlib.util.spec_from_file_location("release", PROJECT / "deploy" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_context_of_the_images_has_what_they_copy(release, tmp_path):
    release.context(tmp_path / "images.tar.gz")
    release.check_context(tmp_path / "images.tar.gz")
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "a.Dockerfile").write_text(
        "FROM x\nCOPY --chown=1:1 \\\n  there gone/*.txt /to/\nCOPY --from=x /y /y\n"
    )
    (tmp_path / "some" / "there").write_text("")
    for folder, said in (
        ("some", r"a lacks gone/\*\.txt, which a\.Dockerfile copies"),
        ("dist", "a has no Dockerfile"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        with tarfile.open(tmp_path / "a", "w:gz") as archive:
            for file in sorted((tmp_path / folder).iterdir()):
                archive.add(file, file.name)
        with pytest.raises(SystemExit, match=said):
            release.check_context(tmp_path / "a")


def test_a_python_that_makes_no_environment_is_not_tried(release, tmp_path):
    lacking = tmp_path / "python3.99"
    lacking.write_text(f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    lacking.chmod(0o755)
    assert release.runs(sys.executable)
    assert not release.runs(str(lacking)) and not release.runs(str(tmp_path / "none"))


def test_the_notes_of_a_release_are_those_of_its_version(release):
    changelog = (
        "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.2.0 (2026-01-01)\n\n- two\n- three\n\n## 0.1.0\n\n- one\n"
    )
    assert release.notes(changelog, "0.2.0") == "# opgate 0.2.0\n\n- two\n- three\n"
    assert release.notes(changelog, "0.1.0") == "# opgate 0.1.0\n\n- one\n"
    assert release.notes(changelog, "0.3.0") == "# opgate 0.3.0\n\n- new\n"
    with pytest.raises(ValueError, match=r"says nothing of 0\.3\.0"):
        release.notes("# Changelog\n\n## 0.1.0\n\n- one\n", "0.3.0")
