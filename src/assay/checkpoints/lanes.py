"""Vector loops that keep the order of summation fixed.

A compiler may vectorise a float sum only by reordering it, and then the last digits depend on the width of
the machine's registers.  The loops here are written as vectors from the start: element ``i`` is added to
lane ``i % 16``, whatever the machine, so a sum of ``n`` terms has the same bits everywhere (and a radius of
``(n/16 + 5) u`` times the sum of absolute terms, ``u = 2**-53``).  Each intrinsic works on elements
``begin .. end - 1``, stops before the last incomplete vector, and returns where; the caller adds the rest
and folds the lanes.  (Bounds instead of slices: a slice costs two atomic reference counts.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16

_WORD = ir.IntType(32)
_SINGLE = ir.VectorType(ir.FloatType(), LANES)
_DOUBLE = ir.VectorType(ir.DoubleType(), LANES)
_WORDS = ir.VectorType(_WORD, LANES)
FLOAT_OF_BITS = {types.uint16: types.float32, types.uint32: types.float32, types.uint64: types.float64}

Builder = Any
Value = Any


def _constant(vector: Any, value: float) -> Value:
    return ir.Constant(vector, [value] * LANES)


def _splat(builder: Builder, scalar: Value) -> Value:
    vector = ir.VectorType(scalar.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), _constant(_WORDS, 0))


def _unary(builder: Builder, name: str, value: Value) -> Value:
    """One of the ``llvm.*`` functions of a vector of floats."""
    width = 64 if value.type == _DOUBLE else 32
    kind = ir.FunctionType(value.type, [value.type])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f{width}")
    return builder.call(function, [value])


def _as_double(builder: Builder, value: Value) -> Value:
    return value if value.type == _DOUBLE else builder.fpext(value, _DOUBLE)


def _float_of_bits(builder: Builder, value: Value) -> Value:
    if value.type == ir.VectorType(ir.IntType(16), LANES):
        value = builder.shl(builder.zext(value, _WORDS), _constant(_WORDS, 16))
    return builder.bitcast(value, _SINGLE if value.type == _WORDS else _DOUBLE)


def _generate(
    context: Any,
    builder: Builder,
    arrays: Sequence[tuple[Any, Value]],
    bounds: tuple[Value, Value],
    lanes: tuple[Any, Value],
    sums: int,
    terms: Callable[..., Sequence[Value]],
) -> Value:
    """The loop: load one vector of each array, compute ``sums`` terms, add them to as many sets of lanes."""
    views = [(kind, context.make_array(kind)(context, builder, value)) for kind, value in arrays]
    out = context.make_array(lanes[0])(context, builder, lanes[1])
    begin, end = bounds
    size = builder.sub(end, begin)
    stop = builder.add(begin, builder.and_(size, ir.Constant(size.type, -LANES)))
    totals = [cgutils.alloca_once_value(builder, _constant(_DOUBLE, 0.0)) for _ in range(sums)]
    with cgutils.for_range_slice(builder, begin, stop, ir.Constant(size.type, LANES)) as (i, _):
        vectors = []
        for kind, view in views:
            vector = ir.VectorType(context.get_value_type(kind.dtype), LANES)
            place = builder.bitcast(builder.gep(view.data, [i]), ir.PointerType(vector))
            vectors.append(builder.load(place, align=kind.dtype.bitwidth // 8))
        for total, term in zip(totals, terms(*vectors), strict=True):
            builder.store(builder.fadd(builder.load(total), term), total)
    for number, total in enumerate(totals):
        place = builder.gep(out.data, [ir.Constant(size.type, number * LANES)])
        builder.store(builder.load(total), builder.bitcast(place, ir.PointerType(_DOUBLE)), align=8)
    return stop


@intrinsic
def square_lanes(_: Any, bits: Any, begin: Any, end: Any, lanes: Any) -> Any:
    """Sum of squares of the floats with these bits (bfloat16, float32 or float64), into ``lanes[0:16]``."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        def terms(raw: Value) -> list[Value]:
            x = _as_double(builder, _float_of_bits(builder, raw))
            return [builder.fmul(x, x)]

        kinds = signature.args
        return _generate(context, builder, [(kinds[0], args[0])], args[1:3], (kinds[3], args[3]), 1, terms)

    return types.int64(bits, types.int64, types.int64, lanes), generate


@intrinsic
def span_lanes(
    _: Any, delta: Any, words: Any, begin: Any, end: Any, last: Any, inverse_step: Any, lanes: Any
) -> Any:
    """th (1 - th) with th = frac(|d| * inverse_step), into ``lanes[0:16]``; d^2 where word > last, into [16:32];
    d^4 into [32:48]."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        limit, inverse = _splat(builder, args[4]), _splat(builder, args[5])

        def terms(d: Value, w: Value) -> list[Value]:
            x = _as_double(builder, d)
            a = builder.fmul(_unary(builder, "fabs", x), inverse)
            theta = builder.fsub(a, _unary(builder, "floor", a))
            spread = builder.fmul(theta, builder.fsub(_constant(_DOUBLE, 1.0), theta))
            square = builder.fmul(x, x)
            return [spread, _where_dropped(builder, square, w, limit), builder.fmul(square, square)]

        kinds = signature.args
        arrays = list(zip(kinds[:2], args[:2], strict=True))
        return _generate(context, builder, arrays, args[2:4], (kinds[6], args[6]), 3, terms)

    bound = types.int64
    return types.int64(delta, words, bound, bound, types.uint32, types.float64, lanes), generate


@intrinsic
def survivor_lanes(_: Any, x: Any, value: Any, begin: Any, end: Any, lanes: Any) -> Any:
    """x^2 into ``lanes[0:16]`` and (x - value)^2 into [16:32]; x float64, value float32."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        def terms(d: Value, v: Value) -> list[Value]:
            residual = builder.fsub(d, _as_double(builder, v))
            return [builder.fmul(d, d), builder.fmul(residual, residual)]

        kinds = signature.args
        arrays = list(zip(kinds[:2], args[:2], strict=True))
        return _generate(context, builder, arrays, args[2:4], (kinds[4], args[4]), 2, terms)

    return types.int64(x, value, types.int64, types.int64, lanes), generate


@intrinsic
def bfloat16_lanes(_: Any, delta: Any, words: Any, begin: Any, end: Any, last: Any, lanes: Any) -> Any:
    """With lo <= |d| <= hi the nearest bfloat16 values: (hi - |d|)(|d| - lo) into ``lanes[0:16]``, (hi - lo)^2
    into [16:32]; d^2 where word > last, into [32:48]; d^4 into [48:64], and (hi - lo)^4 into [64:80]."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        limit = _splat(builder, args[4])

        def terms(d: Value, w: Value) -> list[Value]:
            low, high = _bfloat16_neighbours(builder, _unary(builder, "fabs", d))
            x = _as_double(builder, d)
            size = _unary(builder, "fabs", x)
            step = builder.fsub(high, low)
            spread = builder.fmul(builder.fsub(high, size), builder.fsub(size, low))
            square, step_square = builder.fmul(x, x), builder.fmul(step, step)
            dropped = _where_dropped(builder, square, w, limit)
            fourths = [builder.fmul(square, square), builder.fmul(step_square, step_square)]
            return [spread, step_square, dropped, *fourths]

        kinds = signature.args
        arrays = list(zip(kinds[:2], args[:2], strict=True))
        return _generate(context, builder, arrays, args[2:4], (kinds[5], args[5]), 5, terms)

    return types.int64(delta, words, types.int64, types.int64, types.uint32, lanes), generate


def _where_dropped(builder: Builder, square: Value, w: Value, limit: Value) -> Value:
    return builder.select(builder.icmp_unsigned(">", w, limit), square, _constant(_DOUBLE, 0.0))


def _bfloat16_neighbours(builder: Builder, size: Value) -> tuple[Value, Value]:
    """Largest bfloat16 <= size and smallest >= size, as doubles; size is >= 0 and at most the largest."""
    if size.type == _SINGLE:
        floor = ceiling = builder.bitcast(size, _WORDS)
    else:  # round to float32, then step back over any rounding
        single = builder.fptrunc(size, _SINGLE)
        back = builder.fpext(single, _DOUBLE)
        bits = builder.bitcast(single, _WORDS)
        floor = builder.sub(bits, builder.zext(builder.fcmp_ordered(">", back, size), _WORDS))
        ceiling = builder.add(bits, builder.zext(builder.fcmp_ordered("<", back, size), _WORDS))
    keep = _constant(_WORDS, 0xFFFF0000)
    low = builder.and_(floor, keep)
    high = builder.and_(builder.add(ceiling, _constant(_WORDS, 0xFFFF)), keep)
    return (
        builder.fpext(builder.bitcast(low, _SINGLE), _DOUBLE),
        builder.fpext(builder.bitcast(high, _SINGLE), _DOUBLE),
    )


@intrinsic
def mask_of_words(_: Any, words: Any, at: Any, last: Any) -> Any:
    """A uint64 whose bit ``j`` says ``words[at + j] <= last``."""
    vector = ir.VectorType(_WORD, 64)

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        place = builder.bitcast(builder.gep(view.data, [args[1]]), ir.PointerType(vector))
        undefined = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(undefined, args[2], ir.Constant(_WORD, 0))
        limit = builder.shuffle_vector(first, undefined, ir.Constant(vector, [0] * 64))
        below = builder.icmp_unsigned("<=", builder.load(place, align=4), limit)
        return builder.bitcast(below, ir.IntType(64))

    return types.uint64(words, types.int64, types.uint32), generate


@intrinsic
def float_of(_: Any, bits: Any) -> Any:
    """The float with these bits: uint16 is bfloat16, uint32 float32, uint64 float64."""
    target = FLOAT_OF_BITS[bits]

    def generate(context: Any, builder: Builder, _: Any, args: Any) -> Value:
        (value,) = args
        if bits == types.uint16:
            value = builder.shl(builder.zext(value, _WORD), ir.Constant(_WORD, 16))
        return builder.bitcast(value, context.get_value_type(target))

    return target(bits), generate


@intrinsic
def bits_of(_: Any, value: Any) -> Any:
    """The bits of a float32 or float64."""
    target = {types.float32: types.uint32, types.float64: types.uint64}[value]

    def generate(context: Any, builder: Builder, _: Any, args: Any) -> Value:
        return builder.bitcast(args[0], context.get_value_type(target))

    return target(value), generate


@intrinsic
def trailing_zeros(_: Any, mask: Any) -> Any:
    """The number of zero bits below the lowest set bit of a uint64; 64 for zero."""

    def generate(_: Any, builder: Builder, __: Any, args: Any) -> Value:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def ones(_: Any, mask: Any) -> Any:
    """The number of set bits of a uint64."""

    def generate(_: Any, builder: Builder, __: Any, args: Any) -> Value:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate
