"""The signature grammar: what it accepts, how it reads a signature, and its error for every other text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgate.ops_build.op_table import SignatureError, parse_signature
from tests.conftest import examples

GOOD = [
    "MyAdd(a: f32[...], b: f32[...]) -> (y: f32[...])",
    "KNNQuery(xyz: f32[n,3], offset: i32[b], new_xyz?: f32[m=n,3], new_offset?: i32[b]; nsample: int = 16)\n"
    "    -> (idx: i32[m,nsample], dist: f32[m,nsample])",
    "GridCluster(pos: f32[n,d], size: f32[d], start?: f32[d], end?: f32[d]) -> (cluster: i64[n])",
    "Voxelize(points: f32[n,c], size: f32[3], range?: f32[6]) -> (features: f32[v<=n,c], coords: i32[v,3], counts: i32[v])",
    "<T: f16|f32> BevPoolV2(depth: T[b,cams,d,h,w], feat: T[b,cams,h,w,c], ranks_depth: i32[p], ranks_feat: i32[p], "
    "ranks_bev: i32[p], starts?: i32[i], lengths?: i32[i]; out_z: int=1, out_height: int, out_width: int) "
    "-> (bev: T[b,out_z,out_height,out_width,c])",
    "<T: f16|bf16|f32> RMSNorm(x: T[...,c], weight: T[c], residual?: T[...,c]; epsilon: float=0.00001) "
    "-> (y: T[...,c], sum?: T[...,c])",
    "<T: f32|f64, I: i32|i64> Pick(x: T[n,...], indices: I[m]) -> (y: T[m,...])",
    "Scalar(x: f32[]) -> (y: f32[])",
    "NoInputs(; shape: int[]) -> (y: f32[1])",
    "Sum(xs*: f32[...]) -> (y: f32[...])",
    "Tile(x: f32[n], times: const i64[]) -> (y: f32[n*times])",
    "Check(x: f32[n], y: f32[2*n+1]) -> (z: f32[(n-1)/2, n%3, min(n,4), max(n,4), ceildiv(n,4)])",
    'Attrs(x: str[n]; a: int=-3, b: float=-1.5e-3, c: bool=true, d: str="say \\"hi\\"\\n", e: {one|two}=two, f: int[2]=[1,-2], '
    'g: float[]=[], h: bool[]=[true,false], i: str[]=["a","b"]) -> (y: bool[n])',
    "SameNames(x: f32[n]) -> (x: f32[n])",
    "Height(x: f32[height]; height: int) -> (y: f32[height])",
]


@pytest.mark.parametrize("text", GOOD, ids=lambda text: text.split("(")[0])
def test_good_signatures(library: Path, text: str) -> None:
    assert parse_signature(library, text).signature == " ".join(text.split())


def test_everything_in_a_signature_is_read(library: Path) -> None:
    op = parse_signature(library, GOOD[4])
    assert op.name == "BevPoolV2"
    assert op.type_variables == {"T": ("f16", "f32")}
    assert [tensor.name for tensor in op.inputs if tensor.optional] == ["starts", "lengths"]
    assert [(a.name, a.required, a.default) for a in op.attributes] == [
        ("out_z", False, 1),
        ("out_height", True, None),
        ("out_width", True, None),
    ]
    assert op.outputs[0].dims[1] == {"kind": "expr", "expr": "out_z"}
    voxelize = parse_signature(library, GOOD[3])
    assert voxelize.outputs[0].dims[0] == {"kind": "bounded", "name": "v", "bound": "n"}
    assert voxelize.outputs[0].data_dependent
    knn = parse_signature(library, GOOD[1])
    assert knn.inputs[2].dims == [{"kind": "name", "name": "m", "default": "n"}, {"kind": "expr", "expr": 3}]


def test_attributes_and_defaults_are_read(library: Path) -> None:
    op = parse_signature(library, GOOD[12])
    values = {a.name: a.default for a in op.attributes}
    assert values == {
        "a": -3, "b": -0.0015, "c": True, "d": 'say "hi"\n', "e": "two",
        "f": [1, -2], "g": [], "h": [True, False], "i": ["a", "b"],
    }  # fmt: skip
    assert op.attributes[4].choices == ("one", "two")
    assert op.attributes[5].length == 2


def test_the_least_and_the_greatest_integer_are_defaults(library: Path) -> None:
    op = parse_signature(
        library, "X(a: f32[n]; low: int=-9223372036854775808, high: int=9223372036854775807) -> (y: f32[n])"
    )
    assert [attribute.default for attribute in op.attributes] == [-(2**63), 2**63 - 1]


def test_expressions_bind_as_in_arithmetic(library: Path) -> None:
    op = parse_signature(library, "E(x: f32[n,m]) -> (y: f32[n+2*m-1, (n+2)*m, n/2/3, min(n, max(m, 4)) % 5])")
    assert [dim["expr"] for dim in op.outputs[0].dims] == [
        ["-", ["+", "n", ["*", 2, "m"]], 1],
        ["*", ["+", "n", 2], "m"],
        ["/", ["/", "n", 2], 3],
        ["%", ["min", "n", ["max", "m", 4]], 5],
    ]


BAD = [
    ("", 1, "expected the op's name, got the end of the signature"),
    ("my(x: f32[n]) -> (y: f32[n])", 1, "CamelCase"),
    ("X(a: f33[n]) -> (y: f32[n])", 6, "expected a dtype (f16, bf16"),
    ("X(a: f32[n) -> (y: f32[n])", 11, "expected ']', got ')'"),
    ("X(a: f32[n]) (y: f32[n])", 14, "expected '->', got '('"),
    ("X(a: f32[n]) -> ()", 18, "expected an output's name, got ')'"),
    ("X(a: f32[n]) -> (y: f32[n]) z", 29, "expected the end of the signature, got 'z'"),
    ("X(a: f32[n], a: f32[n]) -> (y: f32[n])", 14, "input 'a' is named twice"),
    ("X(a: f32[n]; a: int) -> (y: f32[n])", 14, "attribute 'a' is named twice"),
    ("X(a: f32[n]) -> (y: f32[n], y: f32[n])", 29, "output 'y' is named twice"),
    ("X(a: f32[n]) -> (y: f32[m])", 25, "size 'm' is bound by no input, attribute or output"),
    ("X(a: f32[n+k]) -> (y: f32[3])", 10, "size 'n' is bound by no input"),
    ("X(a: f32[..., n, ...]) -> (y: f32[n])", 18, "'...' or '*' stands at most once in an input"),
    ("X(a: f32[..., n, *]) -> (y: f32[n])", 18, "'...' or '*' stands at most once in an input"),
    ("X(a: f32[...]) -> (y: f32[..., ...])", 32, "'...' stands at most once in an output"),
    ("X(a: f32[*]) -> (y: f32[*])", 25, "expected"),
    ("X(a: f32[*]) -> (y: f32[...])", 25, "'...' in an output needs a '...' in an input"),
    ("X(a: f32[n]) -> (y: f32[...])", 25, "'...' in an output needs a '...' in an input"),
    ("X(a?: f32[n], b: f32[n]) -> (y: f32[3])", 15, "input 'b' must be optional, it follows the optional input 'a'"),
    ("X(a*: f32[n], b: f32[n]) -> (y: f32[n])", 15, "no input may follow the variadic input 'a'"),
    ("X(a?*: f32[n]) -> (y: f32[3])", 5, "optional or variadic, not both"),
    ("X(a: f32[m=n]) -> (y: f32[m])", 10, "only an optional input's dim can have a default, and 'a' is required"),
    ("X(a: f32[n], b?: f32[m]) -> (y: f32[m])", 37, "size 'm' is unknown when the optional input is absent"),
    ("X(a: f32[n]) -> (y: f32[v<=n,v<=n])", 30, "size 'v' is bounded twice"),
    ("X(a: f32[v]) -> (y: f32[v<=8])", 10, "size 'v' is bound by an input and by '<='"),
    ("X(a: f32[n], b: f32[v+1]) -> (y: f32[v<=n])", 21, "size 'v' is known only after the kernel has run"),
    ("X(a: f32[n]) -> (y?: f32[n], z: f32[n])", 30, "output 'z' must be optional"),
    ("X(a: f32[n]) -> (y??: f32[n], z?: f32[n])", 31, "output 'z' must have ??, it follows 'y??'"),
    ("X(a??: f32[n]) -> (y: f32[n])", 5, "expected ':'"),
    ("<T: f32> X(a: f32[n]) -> (y: T[n])", 2, "type variable 'T' occurs in no required input"),
    ("<T: f32> X(a: f32[n], b?: T[n]) -> (y: T[n])", 2, "type variable 'T' occurs in no required input"),
    ("<T: f32, T: f64> X(a: T[n]) -> (y: T[n])", 10, "type variable 'T' is named twice"),
    ("<T: f32|f32> X(a: T[n]) -> (y: T[n])", 9, "dtype 'f32' is listed twice"),
    ("<t: f32> X(a: t[n]) -> (y: t[n])", 2, "begins with a capital letter"),
    ("X(a: U[n]) -> (y: f32[n])", 6, "no declared type variable either"),
    ("X(a: f32[n]; k: int=1.5) -> (y: f32[n])", 21, "expected an integer, got '1.5'"),
    ("X(a: f32[n]; k: int=true) -> (y: f32[n])", 21, "expected a default of type int, got 'true'"),
    ("X(a: f32[n]; k: bool=1) -> (y: f32[n])", 22, "expected a default of type bool, got '1'"),
    ("X(a: f32[n]; k: {a|b}=c) -> (y: f32[n])", 23, "expected a default of type {a|b}, got 'c'"),
    ("X(a: f32[n]; k: {a|a}) -> (y: f32[n])", 20, "choice 'a' is listed twice"),
    ("X(a: f32[n]; k: int[2]=[1]) -> (y: f32[n])", 24, "expected 2 values, got 1"),
    ("X(a: f32[n]; k: tensor) -> (y: f32[n])", 17, "expected int, float, bool, str or {choices}, got 'tensor'"),
    ("X(a: f32[n]; k: float=1.0) -> (y: f32[k])", 39, "attribute 'k' is used as a size and is of type float"),
    ("X(a: f32[n], k: i64[]) -> (y: f32[k])", 35, "input 'k' is used as a size and is not a required 'const'"),
    (
        "X(n: const i64[], a: f32[n]) -> (y: f32[n])",
        26,
        "size 'n' is a dim of an input and the name of an integer scalar",
    ),
    ("X(a: f32[n], n?: const i64[]) -> (y: f32[n])", 10, "size 'n' is a dim of an input and the name of an integer"),
    ("X(a: f32[n], b?: f32[k=n]; k: int=5) -> (y: f32[k])", 22, "size 'k' is an attribute and can't have a default"),
    ("X(a: f32[99999999999999999999]) -> (y: f32[3])", 10, "does not fit 64 bits"),
    ("X(a: f32[2^n]) -> (y: f32[3])", 11, "unexpected character '^'"),
    ("X(a: f32[n]) -> (y: f32[v≤n])", 26, "unexpected character '≤'"),
    ("X(a: f32[n], b?: f32[...,n]) -> (y: f32[...,n])", 41, "'...' is unknown when the optional input is absent"),
    (
        "X(a: f32[n], b?: f32[k]) -> (y: f32[n], z?: f32[k])",
        49,
        "size 'k' is unknown when the optional input is absent",
    ),
    ("X(a: f32[n" + "+n" * 300 + "]) -> (y: f32[3])", 523, "more than 256 operators"),
    ('X(a: f32[n]; s: str="open) -> (y: f32[n])', 21, "a string that does not end"),
    ('X(a: f32[n]; s: str="\\q") -> (y: f32[n])', 22, "unknown escape"),
    ("X(a: f32[pow(2,3)]) -> (y: f32[3])", 10, "expected min, max or ceildiv, got 'pow'"),
    ("X(a: f32[min(2)]) -> (y: f32[3])", 15, "expected ',', got ')'"),
    ("X(a: f32[-1]) -> (y: f32[3])", 10, "expected a size"),
    ("X(a: f32[" + "(" * 100 + "1" + ")" * 100 + "]) -> (y: f32[3])", 74, "nested more than 64 deep"),
]


@pytest.mark.parametrize(("text", "column", "message"), BAD, ids=[text[:40] for text, _, _ in BAD])
def test_bad_signatures_are_refused_with_the_column(library: Path, text: str, column: int, message: str) -> None:
    with pytest.raises(SignatureError) as refused:
        parse_signature(library, text)
    assert message in str(refused.value)
    assert refused.value.column == column


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_no_text_breaks_the_parser(library: Path, data: st.DataObject) -> None:
    good = data.draw(st.sampled_from(GOOD))
    start = data.draw(st.integers(0, len(good)))
    cut = data.draw(st.integers(0, 8))
    insert = data.draw(st.text(alphabet='abTf32[](){},;:|?*=+-/%<>."\\ \n', max_size=6))
    text = good[:start] + insert + good[start + cut :]
    try:
        parse_signature(library, text)
    except SignatureError as error:
        assert 1 <= error.column <= len(text) + 1
