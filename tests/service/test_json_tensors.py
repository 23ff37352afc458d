"""Tensors in JSON, against Python's own JSON reader and NumPy."""

from __future__ import annotations

import json
import math
import sys
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import Kind, ServingError
from opgate.service.native import json_tensors as native
from opgate.service.wire.json_tensors import MAX_REST_BYTES, from_text, members, parse_object, read, split, write
from tests.conftest import examples

LIMITS = Limits()
FLOATS = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BF16": ml_dtypes.bfloat16}
INTEGERS = [name for name in DATATYPES if name.startswith(("INT", "UINT"))]


def from_json(text, datatype, shape=None, limits=LIMITS):
    return read(from_text(text, "x", limits), DATATYPES[datatype], shape, "x", limits)


def floats(array, datatype):
    """Returns the elements of an array of a floating-point type as that type."""
    return array.view(FLOATS[datatype])


def refusal(text, datatype, shape=None, limits=LIMITS):
    with pytest.raises(ServingError) as caught:
        from_json(text, datatype, shape, limits)
    return caught.value


NUMBERS = st.one_of(
    st.floats().map(json.dumps),
    st.floats(width=32).map(json.dumps),
    st.floats(width=16).map(json.dumps),
    st.integers(-(10**25), 10**25).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)


def nearest(text, dtype):
    """Returns the number of a type that is nearest to a decimal number, the even one of two, infinity beyond all."""
    if text.endswith(("NaN", "Infinity")):
        return dtype(text.replace("Infinity", "inf"))
    exact = Fraction(text)
    with np.errstate(over="ignore"):
        guess = dtype(float(text))
    if np.isinf(guess):
        guess = np.copysign(np.finfo(dtype).max, guess)
    with np.errstate(over="ignore"):
        near = (np.nextafter(guess, dtype(-np.inf)), guess, np.nextafter(guess, dtype(np.inf)))
    # Infinity counts as the number that would follow the largest one.
    beyond = Fraction(2) ** np.finfo(dtype).maxexp

    def distance(candidate):
        value = Fraction(float(candidate)) if np.isfinite(candidate) else beyond * int(np.sign(candidate))
        return abs(value - exact), int(candidate.view(f"u{candidate.itemsize}")) % 2

    best = min(near, key=distance)
    return np.copysign(best, dtype(-0.0)) if text.startswith("-") else best


@pytest.mark.parametrize("datatype", FLOATS)
@given(st.lists(NUMBERS, min_size=1, max_size=20))
@example(["16777217", "1.00000017881393421514957253748434595763683319091796875", "9007199254740993"])
@example(["1e-400", "-1e-400", "4.9e-324", "1e-46", "-0.0", "0e999", "65504", "65503.999"])
@example(["123456789012345678901", "0.00000000000000000000000012345678901234567", "1e27", "1e-27", "7e22"])
@hypothesis_settings(max_examples=examples(200), deadline=None)
def test_numbers_are_rounded_to_the_nearest(datatype, texts):
    """FP16 is rounded from FP64, and BF16 from FP32. NumPy and ml_dtypes do these steps here."""
    for text in texts:
        wide = nearest(text, np.float32 if datatype in ("FP32", "BF16") else np.float64)
        largest = float(ml_dtypes.finfo(FLOATS[datatype]).max)
        if not text.endswith(("NaN", "Infinity")) and abs(float(wide)) > largest:
            assert "too large" in refusal(text, datatype).message
            continue
        want = np.array(wide).astype(FLOATS[datatype])
        got = floats(from_json(f"[{text}]", datatype), datatype)[0]
        if np.isnan(want):
            assert np.isnan(got)
        else:
            assert got.tobytes() == want.tobytes(), text


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_every_value_of_16_bits_comes_back(datatype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    array = bits.view(DATATYPES[datatype].dtype)
    back = from_json(b"".join(write(array, DATATYPES[datatype], nested=False, name="y")).decode(), datatype)
    values = floats(back, datatype)
    nan = np.isnan(bits.view(FLOATS[datatype]).astype(np.float32))
    assert (np.isnan(values) == nan).all()
    assert (back.view(np.uint16)[~nan] == bits[~nan]).all()


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_random_bits_come_back(datatype):
    size = DATATYPES[datatype].itemsize
    array = np.frombuffer(np.random.default_rng(0).bytes(size * 20000), DATATYPES[datatype].dtype)
    text = b"".join(write(array, DATATYPES[datatype], nested=False, name="y")).decode()
    back = from_json(text, datatype)
    assert np.array_equal(back, array, equal_nan=True)
    assert np.array_equal(np.array(json.loads(text), array.dtype), array, equal_nan=True)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("datatype", FLOATS)
def test_a_float_is_written_as_one(datatype, nested):
    """Whoever reads 3 makes an integer of it, and -0 has no sign then. The longest texts are those of 21 digits."""
    values = [3.0, -0.0, 0.0, -1.0, 65504.0, 0.5, 1e-7, 5e-324, 16777216.0, -1.2345678901234567e20, -9.87654321e21]
    fit = [value for value in values if abs(value) <= float(ml_dtypes.finfo(FLOATS[datatype]).max)]
    array = from_json(json.dumps(fit), datatype)
    text = b"".join(write(array.reshape(-1, 1), DATATYPES[datatype], nested, "y"))
    back = [value for (value,) in json.loads(text)] if nested else json.loads(text)
    assert all(type(value) is float for value in back)
    assert b"-0.0" in text
    assert np.array(back, FLOATS[datatype]).tobytes() == floats(array, datatype).astype(FLOATS[datatype]).tobytes()


@pytest.mark.parametrize("datatype", FLOATS)
def test_null_is_nan_where_that_is_asked_for(datatype):
    array = from_json("[1, NaN, -Infinity]", datatype)
    text = b"".join(write(array, DATATYPES[datatype], False, "y", nulls=True))
    assert text == b"[1.0,null,-Infinity]"
    (value,) = members(b'{"x": %b}' % text, LIMITS).values()
    back = read(value, DATATYPES[datatype], (3,), "x", LIMITS, nulls=True)
    assert np.array_equal(floats(back, datatype), floats(array, datatype), equal_nan=True)
    with pytest.raises(ServingError, match=f"expected {datatype} values, got null"):
        read(value, DATATYPES[datatype], (3,), "x", LIMITS)
    (value,) = members(b'{"x": [1, null]}', LIMITS).values()
    with pytest.raises(ServingError, match="expected INT8 values, got null"):
        read(value, DATATYPES["INT8"], (2,), "x", LIMITS, nulls=True)


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_at_the_ends_of_their_range(datatype):
    bounds = np.iinfo(DATATYPES[datatype].dtype)
    ends = [bounds.min, bounds.min + 1, 0, bounds.max - 1, bounds.max]
    array = from_json(json.dumps(ends), datatype)
    assert array.tolist() == ends and array.dtype == DATATYPES[datatype].dtype
    assert json.loads(b"".join(write(array, DATATYPES[datatype], nested=False, name="y"))) == ends
    for beyond in (bounds.min - 1, bounds.max + 1, bounds.max * 100):
        text = f"expected {datatype} values of {bounds.min} to {bounds.max}, got {beyond}"
        assert text in refusal(f"[0, {beyond}]", datatype).message
    assert from_json("-0", datatype) == 0


def test_booleans():
    array = from_json("[true,\n false , true]", "BOOL")
    assert array.tolist() == [True, False, True] and array.dtype == np.bool_
    assert write(array, DATATYPES["BOOL"], nested=False, name="y") == [b"[true,false,true]"]


def nested(element):
    shapes = st.lists(st.integers(0, 3), min_size=0, max_size=4)

    def build(shape):
        size = math.prod(shape)
        return st.lists(element, min_size=size, max_size=size).map(
            lambda values: np.array(values, np.object_).reshape(shape).tolist()
        )

    return shapes.flatmap(build)


@given(nested(st.integers(-5, 5)), st.sampled_from([None, 0, 1]), st.booleans())
@hypothesis_settings(max_examples=examples(300), deadline=None)
def test_the_shape_of_nested_lists(data, indent, spaced):
    text = json.dumps(data, indent=indent, separators=(" , ", " : ") if spaced else None)
    want = np.array(data, np.int64)
    # NumPy and JSON can't tell how many lists an empty list would have held.
    got = from_json(text, "INT64")
    assert got.shape == want.shape and (got == want).all()
    assert json.loads(b"".join(write(got, DATATYPES["INT64"], nested=True, name="y"))) == data


@given(
    st.recursive(
        st.integers(0, 9), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner)
    )
)
@hypothesis_settings(max_examples=examples(500), deadline=None)
def test_uneven_lists_and_objects_are_refused(data):
    try:
        want = np.array(data, np.int64)
    except (ValueError, TypeError):
        assert refusal(json.dumps(data), "INT64").kind is Kind.INVALID
    else:
        assert from_json(json.dumps(data), "INT64").shape == want.shape


TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=6)


@given(TEXTS, st.booleans())
@hypothesis_settings(max_examples=examples(300), deadline=None)
def test_strings(texts, ascii_only):
    got = from_json(json.dumps(texts, ensure_ascii=ascii_only), "BYTES")
    assert got.tolist() == texts
    assert json.loads(b"".join(write(got, DATATYPES["BYTES"], nested=False, name="y"))) == texts


@given(TEXTS, st.sampled_from(["", "\ud800", "ä", "日本"]))
@hypothesis_settings(max_examples=examples(100), deadline=None)
def test_packed_strings(texts, more):
    texts = [*texts, more]
    want = b"".join(len(d).to_bytes(4, "little") + d for d in (t.encode("utf-8", "surrogatepass") for t in texts))
    array = np.array(texts, np.object_)
    assert native.pack_strings(array) == want
    if "\ud800" not in texts:
        read = np.empty(len(texts), np.object_)
        native.unpack_strings(want, 0, len(want), read, 99)
        assert read.tolist() == texts


@pytest.mark.parametrize("letter", ["a", "ä", "日", "\ud800"])
@pytest.mark.parametrize("length", [255, 256, 257, 5000])
def test_packing_keeps_no_copy_of_long_strings(letter, length):
    """A str keeps the UTF-8 that it has given out as long as it lives."""
    text = "".join(letter for _ in range(length))
    before = sys.getsizeof(text)
    want = text.encode("utf-8", "surrogatepass")
    assert native.pack_strings(np.array([text], np.object_)) == len(want).to_bytes(4, "little") + want
    assert length <= 256 or sys.getsizeof(text) == before


def test_packing_takes_arrays_of_objects_alone():
    for wrong in (1, None, ["a"]):
        array = np.empty(2, np.object_)
        array[:] = ["a", wrong]
        with pytest.raises(TypeError, match=f"expected str and bytes, got .*{type(wrong).__name__}"):
            native.pack_strings(array)
    for array in (np.array(["a"]), np.array([1])):
        with pytest.raises(TypeError, match="expected an array of objects"):
            native.pack_strings(array)
    frozen = np.empty(1, np.object_)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"read-only|not writable"):
        native.unpack_strings(b"\0\0\0\0", 0, 4, frozen, 9)


@pytest.mark.parametrize(
    "text", [r'"\x"', r'"\u12"', r'"\ud800"', r'"\udc00"', r'"\ud800\u0041"', '"a\nb"', '"\\u-123"']
)
def test_strings_that_are_no_json(text):
    assert "not valid JSON" in refusal(f"[{text}]", "BYTES").message


def test_a_string_over_the_limit_and_one_that_is_not_utf8():
    limits = Limits(max_string_bytes=3)
    error = refusal('["abc", "abcd"]', "BYTES", limits=limits)
    assert error.kind is Kind.TOO_LARGE and "a string of 4 bytes is over the limit of 3" in error.message
    body = b'{"x": ["\xff"]}'
    with pytest.raises(ServingError, match="not valid JSON"):
        read(members(body, LIMITS)["x"], DATATYPES["BYTES"], None, "x", LIMITS)


@pytest.mark.parametrize(
    ("text", "datatype", "part"),
    [
        ("[1 2]", "FP32", "not valid JSON"),
        ("[1,,2]", "FP32", "not valid JSON"),
        ("[,1]", "FP32", "not valid JSON"),
        ("[1,]", "FP32", "not valid JSON"),
        ("[1,2", "FP32", "has no end"),
        ("[[1],[2]}", "FP32", "not valid JSON"),
        ("[1]]", "FP32", "not valid JSON"),
        ("[01]", "INT32", "the number 01"),
        ("[1.]", "FP32", "the number 1."),
        ("[.5]", "FP32", "not valid JSON"),
        ("[+1]", "FP32", "not valid JSON"),
        ("[1e]", "FP32", "the number 1e"),
        ("[0x10]", "INT32", "has 'x10]'"),
        ("[nan]", "FP32", "not valid JSON"),
        ("[NaN]", "INT32", "got the number NaN"),
        ("[Infinityx]", "FP32", "has 'x]'"),
        ("[truex]", "BOOL", "has 'x]'"),
        ("[null]", "FP32", "got null"),
        ('["1"]', "FP32", 'got the string "1"'),
        ("[true]", "FP32", "got the boolean true"),
        ('[{"a":[1,2,3]}]', "FP32", "got an object"),
        ('["a", null]', "BYTES", "got null"),
        ("[true]", "BYTES", "got the boolean true"),
        ("[1.5e3]", "BYTES", "got the number 1.5e3"),
        ("[nul]", "BYTES", "has 'nul' at byte"),
        ("[1.5]", "INT32", "number with a fraction '1.5'"),
        ("[1e2]", "INT32", "number with a fraction '1e2'"),
        ("[1e39]", "FP32", "1e39 is too large for FP32"),
        ("[1e400]", "FP64", "1e400 is too large for FP64"),
        ("[3.4e38]", "BF16", "3.4e38 is too large for BF16"),
        ("[\x001]", "FP32", "not valid JSON"),
        ("", "FP32", "not valid JSON"),
        ("1, 2", "FP32", "not valid JSON"),
        ('1}, "b": {', "FP32", "not valid JSON"),
        ('1, "": 2, "b": 3', "FP32", "expected a single JSON value"),
    ],
)
def test_what_is_wrong_is_said(text, datatype, part):
    error = refusal(text, datatype)
    assert error.kind is Kind.INVALID
    assert part in error.message


@given(st.text('[]{}",:0123456789eE+-. \\ntrufalsNIiy', max_size=40), st.sampled_from(list(DATATYPES)))
@hypothesis_settings(max_examples=examples(2000), deadline=None)
def test_it_reads_what_python_reads_and_nothing_else(text, datatype):
    """Every other text is refused."""
    try:
        got = from_json(text, datatype)
    except ServingError:
        return
    if datatype == "BYTES" and not text.lstrip().startswith(('"', "[")):
        return
    want = np.array(json.loads(text), dtype=np.object_ if datatype == "BYTES" else None)
    assert got.shape == want.shape


@given(st.binary(max_size=60), st.booleans())
@hypothesis_settings(max_examples=examples(1000), deadline=None)
def test_any_bytes_cause_at_most_an_error_of_the_client(body, whole):
    body = body if whole else b'{"inputs":[{"data":' + body + b'}],"x":' + body + b"}"
    for of_members in (True, False):
        try:
            _, values = split(body, len(body), of_members, LIMITS)
            for value in values:
                for name in ("FP32", "BYTES", "INT8", "BOOL"):
                    read(value, DATATYPES[name], None, "x", LIMITS)
        except ServingError as error:
            assert error.kind in (Kind.INVALID, Kind.TOO_LARGE)


def test_only_the_tensors_are_cut_out():
    body = (
        b'{"id": "\\"data\\":[1]", "parameters": {"data": [1]}, "inputs": [{"data": [1, 2], "parameters": {"data": 3}},'
        b' {"name": "data", "da\\u0074a": [4], "more": [{"data": 5}]}], "data": 6, "outputs": [{"data": 7}]}'
    )
    rest, values = split(body, len(body), False, LIMITS)
    assert [body[v.begin : v.end] for v in values] == [b"[1, 2]"]
    want = json.loads(body)
    want["inputs"][0]["data"] = 0
    assert json.loads(rest) == want


@pytest.mark.parametrize("glued", ["5", ".5", "e3", "0", '"a"'])
def test_what_follows_a_tensor_does_not_become_part_of_its_number(glued):
    body = b'{"a": [1], "b": [2]' + glued.encode() + b"}"
    with pytest.raises(ServingError, match="not valid JSON"):
        members(body, LIMITS)


def test_limits():
    deep = b"[" * 40 + b"]" * 40
    for body in (
        b'{"x": %b}',
        b'{"inputs": [{"data": %b}]}',
        b'{"inputs": %b}',
        b'{"inputs": [{"data": [{"a": %b}]}]}',
    ):
        with pytest.raises(ServingError, match="nested more than 32 deep"):
            split(body % deep, len(body) + 78, False, LIMITS)
    long = b'{"inputs": [], "x": [' + b"1," * MAX_REST_BYTES + b"1]}"
    with pytest.raises(ServingError, match="without its tensors is over the limit"):
        split(long, len(long), False, LIMITS)
    many = b'{"inputs": [' + b'{"data": 1},' * 300 + b"{}]}"
    with pytest.raises(ServingError, match="more inputs than the limit of 256"):
        split(many, len(many), False, LIMITS)
    with pytest.raises(ServingError, match="has 12 bytes of JSON, the limit is 10") as caught:
        split(b'{"inputs":1}', 12, False, Limits(max_json_bytes=10))
    assert caught.value.kind is Kind.TOO_LARGE
    with pytest.raises(ServingError, match="4 elements are over the limit of 3"):
        from_json("[1,2,3,4]", "FP32", limits=Limits(max_elements=3))


def test_native_functions_check_where_they_read_and_write():
    array = np.zeros(2, np.float32)
    for call in (
        lambda: native.fill(b"[1]", 0, 4, "FP32", array, 1),
        lambda: native.fill(b"[1]", 2, 1, "FP32", array, 1),
        lambda: native.fill(b"[1,2,3]", 0, 7, "FP32", array, 3),
        lambda: native.fill(b"[1]", 0, 3, "FP31", array, 1),
        lambda: native.format(array, "FP32", 1, 2, ()),
        lambda: native.format(array, "FP32", -1, 1, ()),
        lambda: native.format(array, "FP32", 0, 2, (3,)),
        lambda: native.format(array, "FP32", 0, 2, (2, 2)),
        lambda: native.unpack_strings(b"\0\0\0\0", 0, 4, np.empty(2, np.object_), 9),
        lambda: native.strings(b"[]", 0, 3, 9),
    ):
        with pytest.raises(ValueError, match=r"outside|fit|datatype"):
            call()
    with pytest.raises(native.Refused):
        native.fill(b"[1,2,3]", 0, 7, "FP32", array, 2)  # more elements than there is room for
    frozen = np.zeros(2, np.float32)
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        native.fill(b"[1]", 0, 3, "FP32", frozen, 1)


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
@pytest.mark.parametrize("size", [63, 64, 4096, 4097])
def test_floats_come_back_whoever_writes_them(datatype, size):
    """Few, many and very many are written by different code, and so are those with a number that JSON hasn't."""
    dtype = DATATYPES[datatype].dtype
    rng = np.random.default_rng(size)
    values = (rng.standard_normal(size) * 10.0 ** rng.uniform(-6, 4, size)).astype(dtype)
    values[:6] = [0.0, -0.0, 3, -1, np.finfo(np.float16).max, 2**-24]
    for number in (None, np.nan, np.inf, -np.inf):
        if number is not None:
            values[size // 2] = number
        for shape in ((size,), (1, size)):
            text = b"".join(write(values.reshape(shape), DATATYPES[datatype], True, "y"))
            body = b'{"y": ' + text + b"}"
            back = read(members(body, LIMITS)["y"], DATATYPES[datatype], None, "y", LIMITS)
            assert back.shape == shape and back.tobytes() == values.tobytes()
            assert all(b"." in part or b"e" in part for part in text.strip(b"[]").split(b",") if part[-1:].isdigit())


@pytest.mark.parametrize(
    "text",
    [
        '{"a": NaN, "b": 1e999}',
        '{"a": NaN, "b": 1' + "0" * 400 + "}",
        '{"a": NaN, "b": "\\ud800"}',
        '{"a": -NaN}',
        '{"a": Infinity',
        '{"a": "NaN" 1}',
        '["NaN",' * 5000,
        "[Infinity]",
    ],
)
def test_an_object_with_infinities_has_the_rules_of_json(text):
    with pytest.raises(ServingError, match="JSON") as caught:
        parse_object(text.encode())
    assert caught.value.kind is Kind.INVALID


def test_an_object_with_infinities():
    found = parse_object('{"a": NaN, "b": [Infinity, -Infinity, 1e308, 18446744073709551616], "é": "NaN"}'.encode())
    assert repr(found) == repr({"a": float("nan"), "b": [np.inf, -np.inf, 1e308, 2.0**64], "é": "NaN"})
    with pytest.raises(ServingError, match="not valid JSON"):
        parse_object(b'{"a": "\xff", "b": NaN}')
