"""`opgate attach`: from a plain network to pictures in, labels out."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def attach(
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An ONNX file of a network.")],
    to: Annotated[Path, typer.Option(help="The folder of the new model in a model repository, such as models/yolo.")],
    pre: Annotated[
        str,
        typer.Option(
            help='What a request has: "letterbox:640 bgr", pcm:16000, tokenizer.json:128, head:1024, columns, ...'
        ),
    ] = "",
    post: Annotated[
        str, typer.Option(help='The head and words for it: "yolov8 score:0.3", classify:5, "ctc:FILE beam:10", ...')
    ] = "",
    labels: Annotated[str, typer.Option(help="metadata, a file with one label a line, or names: cat,dog.")] = "",
    input_: Annotated[
        str, typer.Option("--input", help="The input for the picture or sound, if there are several.")
    ] = "",
    max_batch_size: Annotated[int | None, typer.Option(min=1, help="Requests of a batch.", show_default="8")] = None,
    draw: Annotated[
        bool,
        typer.Option("--draw", help="Also answer with a picture: boxes or texts drawn into it, or the map of classes."),
    ] = False,
    like: Annotated[
        str,
        typer.Option(help="module:function or file.py:function: yours, from an example to its answer."),
    ] = "",
    examples: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="A folder of files, a file of texts or a CSV for --like. Pictures also prove batches.",
        ),
    ] = None,
    read: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="An ONNX file that reads the lines that db finds.")
    ] = None,
    read_pre: Annotated[str, typer.Option(help="Words for the pre-processing of --read, such as height:48.")] = "",
    turn: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="An ONNX file that tells which lines of --read are upside down."
        ),
    ] = None,
    turn_pre: Annotated[
        str, typer.Option(help='Words for the pre-processing of --turn: "height:48 widest:192 bucket:0 bgr half".')
    ] = "",
    state: Annotated[
        str, typer.Option(help="The input and the output of a state, input=output; several have commas between them.")
    ] = "",
    library: Annotated[
        Path | None, typer.Option(exists=True, help="Op library. Default: the library that `opgate build` wrote.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is there.")] = False,
) -> None:
    """Put what surrounds a network into its graph: decoding of pictures or sounds, a tokenizer, or the columns of a
    table before it; boxes, labels, text or times behind it.

    Write a folder that `opgate serve` serves: the model, its config, labels, a README and a report. The report says
    where each fact comes from: the file, a run, a default or you. What is not known is an error that names an option.
    """
    from opgate.attach.attach import attach as made
    from opgate.attach.compared.comparison import compare, function_of
    from opgate.attach.model.attached import Compared, write
    from opgate.attach.model.report import AttachError
    from opgate.attach.model.serving import Served
    from opgate.attach.model.wish import Wish
    from opgate.ops_build.building.options import BuildOptions

    ops = library or BuildOptions().library()
    try:
        if like and examples is None:
            raise AttachError("--like goes with --examples, a folder of files, or a file of texts or rows")
        for option, other, wrong in (
            ("--read-pre", "--read", read_pre and read is None),
            ("--turn", "--read", turn is not None and read is None),
            ("--turn-pre", "--turn", turn_pre and turn is None),
        ):
            if wrong:
                raise AttachError(f"{option} goes with {other}")
        if not ops.is_file():
            raise AttachError(f"{ops} is not there: run `opgate build`")
        call = function_of(like) if like else None  # a mistake in it is found before anything is run
        attached = made(
            Wish(
                model,
                pre,
                post,
                labels,
                input_,
                max_batch_size,
                (ops,),
                draw,
                examples,
                read,
                read_pre,
                turn,
                turn_pre,
                state,
            ),
            to.resolve().name,
        )
        command = shlex.join(["opgate", *sys.argv[1:]])

        given = attached.takes.examples(examples) if examples is not None else []

        def compared(served: Served, folder: Path) -> Compared:
            assert call is not None
            return compare(like, call, given, served, folder, ops)

        written, lines = write(attached, to, ops, command, overwrite=overwrite, compare=compared if call else None)
        for line in (*attached.report.lines(), *lines):
            typer.echo(line)
        typer.echo(f"wrote {', '.join(map(str, written))}")
    except (OSError, ValueError, RuntimeError) as error:
        typer.echo(f"opgate: {error}", err=True)
        raise typer.Exit(1) from None
