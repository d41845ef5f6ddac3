"""Vector loops that keep the order of summation fixed.

A compiler may vectorise a float sum only by reordering it, and then the last digits depend on the width of
the machine's registers.  The loops here are written as vectors from the start: a sum is of products, product ``i`` is added
to lane ``i % 16`` by a fused multiply-add, and the lanes are folded as a balanced tree, whatever the machine.  So
a sum of ``n`` products has the same bits everywhere (and a radius of ``(n/16 + 5) u`` times the sum of absolute
terms, ``u = 2**-53``).

Each intrinsic works on elements ``begin .. end - 1`` and reads whole vectors: its arrays must go on for 15
elements after ``end``, of any value.  (Bounds instead of slices: a slice costs two atomic reference counts.)
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


def _sums(
    context: Any,
    builder: Builder,
    arrays: Sequence[tuple[Any, Value]],
    bounds: tuple[Value, Value],
    count: int,
    products: Callable[..., Sequence[tuple[Value, Value]]],
) -> Value:
    """A tuple of ``count`` sums over the elements; ``products`` turns a vector of each array into as many pairs of
    factors, whose product is 0 where the arrays are."""
    fused = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_DOUBLE, [_DOUBLE] * 3), f"llvm.fma.v{LANES}f64"
    )
    views = [(kind, context.make_array(kind)(context, builder, value)) for kind, value in arrays]
    begin, end = bounds
    size = builder.sub(end, begin)
    full = builder.add(begin, builder.and_(size, ir.Constant(size.type, -LANES)))
    totals = [cgutils.alloca_once_value(builder, _constant(_DOUBLE, 0.0)) for _ in range(count)]

    def add(i: Value, inside: Value | None) -> None:
        vectors = []
        for kind, view in views:
            vector = ir.VectorType(context.get_value_type(kind.dtype), LANES)
            place = builder.bitcast(builder.gep(view.data, [i]), ir.PointerType(vector))
            loaded = builder.load(place, align=kind.dtype.bitwidth // 8)
            if inside is not None:
                loaded = builder.select(inside, loaded, ir.Constant(vector, None))
            vectors.append(loaded)
        for total, factors in zip(totals, products(*vectors), strict=True):
            builder.store(builder.call(fused, [*factors, builder.load(total)]), total)

    with cgutils.for_range_slice(builder, begin, full, ir.Constant(size.type, LANES)) as (i, _):
        add(i, None)
    with builder.if_then(builder.icmp_signed("<", full, end)):
        left = _splat(builder, builder.trunc(builder.sub(end, full), _WORD))
        add(full, builder.icmp_signed("<", ir.Constant(_WORDS, list(range(LANES))), left))
    folded = [_fold(builder, builder.load(total)) for total in totals]
    return context.make_tuple(builder, types.UniTuple(types.float64, count), folded)


def _fold(builder: Builder, lanes: Value) -> Value:
    """Sum of the lanes as a balanced tree: the upper half is added to the lower until one is left."""
    width = LANES // 2
    while width:
        undefined = ir.Constant(lanes.type, ir.Undefined)
        halves = [
            builder.shuffle_vector(
                lanes, undefined, ir.Constant(ir.VectorType(_WORD, width), list(range(first, first + width)))
            )
            for first in (0, width)
        ]
        lanes = builder.fadd(*halves)
        width //= 2
    return builder.extract_element(lanes, ir.Constant(_WORD, 0))


@intrinsic
def span_sums(_: Any, delta: Any, words: Any, begin: Any, end: Any, last: Any, inverse_step: Any) -> Any:
    """Sums of th (1 - th) with th = frac(|d| * inverse_step), of d^2 where word > last, and of d^4."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        limit, inverse = _splat(builder, args[4]), _splat(builder, args[5])

        def products(d: Value, w: Value) -> list[tuple[Value, Value]]:
            size = _as_double(builder, _unary(builder, "fabs", d))
            a = builder.fmul(size, inverse)
            theta = builder.fsub(a, _unary(builder, "floor", a))
            rest = builder.fsub(_constant(_DOUBLE, 1.0), theta)
            square = builder.fmul(size, size)
            return [(theta, rest), (_where_dropped(builder, size, w, limit), size), (square, square)]

        arrays = list(zip(signature.args[:2], args[:2], strict=True))
        return _sums(context, builder, arrays, args[2:4], 3, products)

    sums = types.UniTuple(types.float64, 3)
    return sums(delta, words, types.int64, types.int64, types.uint32, types.float64), generate


@intrinsic
def survivor_sums(_: Any, x: Any, value: Any, begin: Any, end: Any) -> Any:
    """Sums of x^2 and of (x - value)^2; x float64, value float32."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        def products(d: Value, v: Value) -> list[tuple[Value, Value]]:
            residual = builder.fsub(d, _as_double(builder, v))
            return [(d, d), (residual, residual)]

        arrays = list(zip(signature.args[:2], args[:2], strict=True))
        return _sums(context, builder, arrays, args[2:4], 2, products)

    return types.UniTuple(types.float64, 2)(x, value, types.int64, types.int64), generate


@intrinsic
def bfloat16_sums(_: Any, delta: Any, words: Any, begin: Any, end: Any, last: Any) -> Any:
    """With lo <= |d| <= hi the nearest bfloat16 values: sums of (hi - |d|)(|d| - lo), of (hi - lo)^2, of d^2
    where word > last, of d^4, and of (hi - lo)^4."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        limit = _splat(builder, args[4])

        def products(d: Value, w: Value) -> list[tuple[Value, Value]]:
            magnitude = _unary(builder, "fabs", d)
            low, high = _bfloat16_neighbours(builder, magnitude)
            size = _as_double(builder, magnitude)
            step = builder.fsub(high, low)
            spread = builder.fsub(high, size), builder.fsub(size, low)
            square, step_square = builder.fmul(size, size), builder.fmul(step, step)
            dropped = _where_dropped(builder, size, w, limit), size
            return [spread, (step, step), dropped, (square, square), (step_square, step_square)]

        arrays = list(zip(signature.args[:2], args[:2], strict=True))
        return _sums(context, builder, arrays, args[2:4], 5, products)

    sums = types.UniTuple(types.float64, 5)
    return sums(delta, words, types.int64, types.int64, types.uint32), generate


def _where_dropped(builder: Builder, size: Value, w: Value, limit: Value) -> Value:
    return builder.select(builder.icmp_unsigned(">", w, limit), size, _constant(_DOUBLE, 0.0))


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
    target: Any = FLOAT_OF_BITS[bits]

    def generate(context: Any, builder: Builder, _: Any, args: Any) -> Value:
        (value,) = args
        if bits == types.uint16:
            value = builder.shl(builder.zext(value, _WORD), ir.Constant(_WORD, 16))
        return builder.bitcast(value, context.get_value_type(target))

    return target(bits), generate


@intrinsic
def bits_of(_: Any, value: Any) -> Any:
    """The bits of a float32 or float64."""
    target: Any = {types.float32: types.uint32, types.float64: types.uint64}[value]

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
