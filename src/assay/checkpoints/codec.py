"""The delta codec: one block of a tensor to bytes and back.

**Numbering.**  A tensor is ``[rows, columns]`` (its first dimension, and the product of the rest), its
elements numbered row by row by a flat index ``i``.  It is coded in blocks of whole rows,
:func:`rows_per_block` each, and each block can be coded and decoded alone.

**Mask.**  Element ``i`` survives iff ``words(key)[i] < threshold`` (:mod:`assay.numerics.philox`), where
``threshold = round(keep_prob * 2**32)``: the drop probability is the rational ``1 - threshold / 2**32``.
Nothing about the mask is stored.  A mask that was chosen, not drawn, is stored in the block instead.

With :attr:`Scheme.factors` the threshold is that of the element's row and column
(:mod:`assay.checkpoints.factors`), and it, not the scheme's, is ``t`` in all that follows; the divisor is then
``t / 2**32`` instead of the rescale.

**Delta.**  ``d = float32(finetuned) - float32(base)``, in float32; float64 throughout for F64 tensors.  An
entry whose ``d`` is not finite, or above the largest bfloat16 in magnitude, cannot be coded: it is counted
(:attr:`BlockStats.uncodable`) and treated as ``d = 0``.  A packer must not accept a block that has any.

**Quantiser, bits 8, 4, 3, 2.**  ``levels k = 2**(bits - 1) - 1``.  Each ``span`` consecutive elements of the
block (counted from its start; the last may be shorter) share the scale ``M``: the largest ``|d|`` of all of
them, dropped or not, rounded up to bfloat16.  With ``h = M / k`` and ``a = |d| * (k / M)``, ``l = floor(a)``,
a survivor's code is ``sign(d) min(k, l + [u < (a - l) t])``, computed in float64; 0 if ``M`` is 0.  The
dither is the mask word used again: ``u = words(key)[i]`` is uniform on ``0 .. t - 1`` given that it is below
``t = threshold``.  (For a stored mask ``t = 2**32``.)  The mean is exact to the dither's resolution: the
probability of rounding up is at least ``a - l`` and exceeds it by less than ``1 / t``, a bias of at most
``h / t``.  The decoded value is ``float32(float64(code) * float64(M) / (k * rescale))``.

**Quantiser, bits 16.**  With ``lo <= |d| <= hi`` the neighbouring bfloat16 values, a survivor is rounded up
iff ``u (hi - lo) < (|d| - lo) t``: variance ``(hi - |d|)(|d| - lo)``, bias at most ``(hi - lo) / t``, and no
finite value becomes infinite.  The decoded value is ``float32(float64(bfloat16) / rescale)``.

**Grid.**  With :attr:`Scheme.step` ``h`` (and factors) a survivor is rounded to a whole multiple of ``h``: with
``a = |d| / h`` and ``l = floor(a)``, in float64, its code is ``sign(d) (l + [u < (a - l) t])``, of magnitude up to
``2**23 - 1``.  The decoded value is ``float32(float64(code) * h / (t / 2**32))``.  There are no scales, and one stream,
coding 5: the codes (:mod:`assay.checkpoints.coder`).

**Applying.**  ``weight = round_to_nearest_even(float32(base) + value)`` in the dtype of the tensor (float64
for F64).  An entry that was dropped, or whose value is 0, keeps the bits of the base.

**Payload.**  Little-endian.  A kind byte (1 survivors, 2 lossless, 3 exact), the number of streams (a byte),
the number of coded entries (uint32), then for each stream its coding (a byte) and length (uint32), then the
streams.  Codings: 0 as they are, 1 raw DEFLATE, 2 raw DEFLATE of whole symbols, ``8 // bits`` to a byte (of
codes only), 3 and 4 byte gaps, as they are or raw DEFLATE (of a stored mask only).  The streams of kind 1:
the stored mask if there is one (a bitmap, least significant bit first, or gaps: the distance from each kept
position to the next, less one, a byte each, 255 for "255 more"); then the low and the high bytes of the
scales, and the codes (``code + k``, ``bits`` bits each, least significant bit first); or for bits 16 the low
and the high bytes of the survivors; or with a step the codes, coding 5.  Kinds 2 and 3: one stream per byte of an element, lowest first.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from assay.checkpoints import coder, grid, kernels
from assay.checkpoints.factors import Factors
from assay.core.errors import InputError
from assay.missions.dare.model import phi
from assay.numerics.philox import Key

Coding = Literal["entropy", "raw"]
Bits = NDArray[Any]

_BLOCK = 1 << 20
_FULL = 1 << 32
_LEVELS = {2: 1, 3: 3, 4: 7, 8: 127}

_SURVIVORS, _LOSSLESS, _EXACT = 1, 2, 3
_RAW, _DEFLATE, _DEFLATE_SYMBOLS, _GAPS, _DEFLATE_GAPS, _INTEGERS = range(6)
_HEAD = struct.Struct("<BBI")
_STREAM = struct.Struct("<BI")


@dataclass(frozen=True)
class _Float:
    """How one safetensors dtype is read: raw bits, numpy type, and the least sum that overflows it."""

    bits: Any
    number: Any
    limit: float


def _half_above(largest: float, step: float, *, tie_overflows: bool = True) -> float:
    limit = largest + step / 2
    return limit if tie_overflows else float(np.nextafter(limit, np.inf))


_FLOATS = {
    "BF16": _Float(np.uint16, ml_dtypes.bfloat16, _half_above(kernels.LARGEST_BFLOAT16, 2.0**120)),
    "F16": _Float(np.uint16, np.float16, _half_above(65504.0, 32.0)),
    "F32": _Float(np.uint32, np.float32, np.inf),
    "F64": _Float(np.uint64, np.float64, np.inf),
    # 448 is even and the pattern above it is NaN, so the tie at 464 rounds back
    "F8_E4M3": _Float(np.uint8, ml_dtypes.float8_e4m3fn, _half_above(448.0, 32.0, tie_overflows=False)),
    "F8_E5M2": _Float(np.uint8, ml_dtypes.float8_e5m2, _half_above(57344.0, 8192.0)),
}
DTYPES = tuple(_FLOATS)


@dataclass(frozen=True)
class Scheme:
    """How the survivors of one tensor are drawn and coded.

    bits         16 (bfloat16), or 8, 4, 3, 2 (quantised)
    threshold    keep threshold in 0 .. 2**32; the keep probability is ``threshold / 2**32``
    rescale      q > 0: survivors are divided by it
    key          Philox key of the tensor, :func:`assay.numerics.philox.key_for`
    span         elements that share a scale (bits < 16), 1 .. 2**20; about ``64 / keep_prob`` is good
    coding       ``"entropy"``, or ``"raw"`` to switch entropy coding off
    stored_mask  the mask is given and stored; the threshold then plays no part
    factors      thresholds by row and column; threshold and rescale then play no part
    step         spacing of the grid that survivors are rounded to (with factors only); bits and span then play no part

    >>> Scheme(bits=4, threshold=2**32 // 10, rescale=0.1, key=(1, 2), span=640).keep_prob
    0.09999999986030161
    """

    bits: int
    threshold: int
    rescale: float
    key: Key
    span: int = 64
    coding: Coding = "entropy"
    stored_mask: bool = False
    factors: Factors | None = None
    step: float | None = None

    def __post_init__(self) -> None:
        if self.step is not None and not (np.isfinite(self.step) and self.step > 0):
            raise InputError(f"a step is a finite number above 0, not {self.step}")
        if self.step is not None and self.factors is None:
            raise InputError("a grid goes with thresholds by row and column")
        if self.bits != 16 and self.bits not in _LEVELS:
            raise InputError(f"survivors take 16, 8, 4, 3 or 2 bits, not {self.bits}")
        if not 0 <= self.threshold <= _FULL:
            raise InputError(f"a keep threshold lies in 0 .. 2**32, not {self.threshold}")
        if not (np.isfinite(self.rescale) and self.rescale > 0):
            raise InputError(f"a rescale is a finite number above 0, not {self.rescale}")
        if not 1 <= self.span <= _BLOCK:
            raise InputError(f"a span lies in 1 .. 2**20 elements, not {self.span}")
        if self.coding not in ("entropy", "raw"):
            raise InputError(f"coding is 'entropy' or 'raw', not {self.coding!r}")
        if len(self.key) != 2 or not all(0 <= word < _FULL for word in self.key):
            raise InputError("a key is two integers in 0 .. 2**32 - 1")
        if self.stored_mask and self.factors is not None:
            raise InputError("a mask is stored, or drawn by row and column factors, not both")

    @property
    def levels(self) -> int:
        """k, with codes in -k .. k; 0 for bits 16."""
        return _LEVELS.get(self.bits, 0)

    @property
    def keep_prob(self) -> float:
        return self.threshold / _FULL


@dataclass(frozen=True)
class BlockStats:
    """What was measured while one block was coded.

    Sums are float64, per row where named so, in a fixed order.  Every term is >= 0, and each sum is within
    ``(n + 8) u`` of its exact value, relative, with ``n`` its number of terms and ``u = 2**-53`` (nearer
    ``n u / 16`` as a rule).  The variance of a quantiser may in addition be off by ``k 2**-51`` times the sum
    of ``m h^2`` (four times the proxy), because ``|d| / h`` is rounded before its fraction is taken.
    ``m_j`` is the column weight, or 1; ``V_ij`` the variance of the quantiser at ``d_ij`` (were it kept) by
    its exact law, ``h^2 th (1 - th)`` with ``th = frac(|d| / h)`` or ``(hi - |d|)(|d| - lo)``; the step
    ``h_ij`` is ``M / k`` or ``hi - lo``; ``v_ij`` the decoded value, 0 if dropped.  Uncodable entries count
    as ``d = 0``.  ``first_*`` are flat indices in the tensor, None if
    there is none.
    """

    kept: int
    changed: int
    row_energy: NDArray[np.float64]  # sum_j m_j d_ij^2
    row_quantiser_variance: NDArray[np.float64]  # sum_j m_j V_ij, over all entries
    row_quantiser_proxy: NDArray[np.float64]  # sum_j m_j h_ij^2 / 4, over all entries
    row_realised: NDArray[np.float64]  # sum_j m_j (d_ij - v_ij)^2
    delta_fourth: float  # sum m_j^2 d_ij^4
    step_fourth: float  # sum m_j^2 h_ij^4, over all entries
    largest_delta: float
    largest_value: float
    base_nonfinite: int
    first_base_nonfinite: int | None
    finetuned_nonfinite: int
    first_finetuned_nonfinite: int | None
    uncodable: int
    first_uncodable: int | None
    overflow: int  # survivors whose base + value is finite no more in the dtype
    first_overflow: int | None
    # With factors, k_ij the keep probability of an entry and Phi its Kearns-Saul coefficient:
    row_variance: NDArray[np.float64] | None = None  # sum_j m_j (d_ij^2 (1 - k_ij) + V_ij) / k_ij
    row_proxy: NDArray[np.float64] | None = None  # sum_j m_j (Phi d_ij^2 / 2 + h_ij^2 / 4) / k_ij^2


@dataclass(frozen=True)
class EncodedBlock:
    payload: bytes
    stats: BlockStats


def rows_per_block(columns: int) -> int:
    """Rows of a block: ``max(1, 2**20 // columns)``.

    >>> rows_per_block(4096), rows_per_block(1), rows_per_block(2**21)
    (256, 1048576, 1)
    """
    return max(1, _BLOCK // max(1, columns))


def encode_block(
    base_bits: Bits,
    finetuned_bits: Bits,
    dtype: str,
    start: int,
    scheme: Scheme,
    column_weight: NDArray[np.float64] | None = None,
    keep: NDArray[np.bool_] | None = None,
) -> EncodedBlock:
    """Code whole rows of a tensor, and measure what that costs in error.

    base_bits, finetuned_bits   raw bits, uint8/16/32/64 by dtype, ``[rows, columns]``, C order
    start                       flat index of the first element
    column_weight               m_j >= 0, ``[columns]``, for the moments only; None: all one (the fast path)
    keep                        the stored mask, bool ``[rows, columns]``; given iff ``scheme.stored_mask``

    >>> base = np.zeros((2, 3), np.uint32)
    >>> finetuned = np.array([[1, 0, 2], [0, -1, 0]], np.float32).view(np.uint32)
    >>> block = encode_block(base, finetuned, "F32", 0, Scheme(16, 2**32, 1.0, (1, 2)))
    >>> block.stats.row_energy
    array([5., 1.])
    >>> index, value = decode_block(block.payload, 0, 6, Scheme(16, 2**32, 1.0, (1, 2)))
    >>> value
    array([ 1.,  0.,  2.,  0., -1.,  0.], dtype=float32)
    """
    form = _form(dtype)
    rows, columns = _check_pair(base_bits, finetuned_bits, form)
    count = rows * columns
    _check_place(start, count)
    if (keep is not None) != scheme.stored_mask:
        raise InputError("a scheme with a stored mask needs the mask, and one without takes none")
    if keep is not None and keep.shape != base_bits.shape:
        raise InputError(f"the mask has shape {list(keep.shape)}, the block {list(base_bits.shape)}")
    if column_weight is not None and column_weight.shape != (columns,):
        raise InputError(f"there are {columns} columns and {column_weight.size} column weights")

    if scheme.step is not None:
        return _encode_grid(base_bits, finetuned_bits, form, start, scheme, column_weight)
    base, finetuned = _wide_bits(base_bits, form).reshape(-1), _wide_bits(finetuned_bits, form).reshape(-1)
    mask = np.empty(0, np.uint8) if keep is None else np.ascontiguousarray(keep).reshape(-1).view(np.uint8)
    weight = np.empty(0) if column_weight is None else np.ascontiguousarray(column_weight, np.float64)
    span = scheme.span if scheme.levels else kernels.TILE
    scales = np.empty(-(-count // span) if scheme.levels else 0, np.uint16)
    symbols = np.empty(count if scheme.levels else 0, np.uint8)
    bfloats = np.empty(0 if scheme.levels else count, np.uint16)
    moments, totals = np.zeros((6 if scheme.factors else 4, rows)), np.zeros(kernels.TOTALS)
    counts, first = np.zeros(kernels.EVENTS, np.int64), np.zeros(kernels.EVENTS, np.int64)
    scratch = np.empty(max(span, kernels.TILE) + kernels.SLACK, np.float64 if dtype == "F64" else np.float32)
    if scheme.factors is not None:
        row_codes = _row_codes(scheme.factors, start, rows, columns)
        if count:
            kernels.encode_factored(
                base, finetuned, weight, row_codes, scheme.factors.column_codes, scheme.factors.thresholds,
                phi(keep_prob=scheme.factors.thresholds / _FULL), *_key(scheme), np.uint64(start),
                float(scheme.levels), span, form.limit,
                scratch, scales, symbols, bfloats, moments, totals, counts, first,
            )  # fmt: skip
    elif count:
        kernels.encode(
            base, finetuned, mask, weight, columns, *_key(scheme), np.uint64(start),
            np.uint64(scheme.threshold), float(scheme.levels), span, float(scheme.rescale), form.limit,
            scratch, scales, symbols, bfloats, moments, totals, counts, first,
        )  # fmt: skip
    kept = int(counts[kernels.KEPT])

    streams = [] if keep is None else [_code_mask(mask, scheme.coding)]
    if scheme.levels:
        streams += [_code(plane, scheme.coding) for plane in _planes(scales)]
        streams.append(_code_symbols(symbols[:kept], scheme.bits, scheme.coding))
    else:
        streams += [_code(plane, scheme.coding) for plane in _planes(bfloats[:kept])]
    return EncodedBlock(_join(_SURVIVORS, kept, streams), _stats(moments, totals, counts, first, start))


def _encode_grid(
    base_bits: Bits,
    finetuned_bits: Bits,
    form: _Float,
    start: int,
    scheme: Scheme,
    column_weight: NDArray[np.float64] | None,
) -> EncodedBlock:
    """`encode_block` for a scheme with a step."""
    assert scheme.factors is not None
    assert scheme.step is not None
    rows, columns = base_bits.shape
    count = rows * columns
    moments, totals = np.zeros((6, rows)), np.zeros(kernels.TOTALS)
    counts, first = np.zeros(kernels.EVENTS, np.int64), np.zeros(kernels.EVENTS, np.int64)
    codes = np.empty(count, np.int32)
    row_codes = _row_codes(scheme.factors, start, rows, columns)
    if count:
        weight = np.empty(0) if column_weight is None else np.ascontiguousarray(column_weight, np.float64)
        wide = np.float64 if form.number is np.float64 else np.float32
        grid.encode_grid(
            _wide_bits(base_bits, form).reshape(-1), _wide_bits(finetuned_bits, form).reshape(-1), weight, row_codes,
            scheme.factors.column_codes, scheme.factors.thresholds,
            phi(keep_prob=scheme.factors.thresholds / _FULL), *_key(scheme), np.uint64(start),
            scheme.step, float(coder.LARGEST), form.limit,
            np.empty(kernels.TILE + kernels.SLACK, wide), codes, moments, totals, counts, first,
        )  # fmt: skip
    kept = int(counts[kernels.KEPT])
    stream = (_INTEGERS, coder.encode(codes[:kept], signed=True))
    return EncodedBlock(_join(_SURVIVORS, kept, [stream]), _stats(moments, totals, counts, first, start))


def decode_block(
    payload: bytes, start: int, count: int, scheme: Scheme
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The survivors of a block: ascending positions in it (int32 ``[kept]``) and values (float32 ``[kept]``).

    ``start`` and ``count`` are those of the block that was coded.  A payload that is not the code of such a
    block raises :class:`InputError`.
    """
    _check_place(start, count)
    names = ["mask"] if scheme.stored_mask else []
    if scheme.step is not None:
        names += ["codes"]
    else:
        names += ["low scales", "high scales", "codes"] if scheme.levels else ["low bytes", "high bytes"]
    kept, streams = _split(payload, _SURVIVORS, count, names)
    keep = None
    if scheme.stored_mask:
        index = _decode_mask(*streams.pop(0), kept, count)
    else:
        if scheme.factors is None:
            index = _drawn_mask(start, count, scheme)
        else:
            index, keep = _factored_mask(start, count, scheme, scheme.factors)
        if index.size != kept:
            raise InputError(
                f"the mask of this block has {index.size} survivors and its payload {kept}: "
                "the seed, the name of the tensor or the keep probability is not the one it was packed with"
            )
    value = np.empty(kept, np.float32)
    if scheme.step is not None:
        coding, stream = streams[0]
        if coding != _INTEGERS:
            raise InputError(f"the codes of a block have an unknown coding {coding}: the delta is damaged")
        assert keep is not None
        with np.errstate(over="ignore"):
            value[:] = coder.decode(stream, kept, signed=True).astype(np.float64) * scheme.step / keep
    elif scheme.levels:
        spans = -(-count // scheme.span)
        scales = _merge([_decode(*stream, spans, "scales") for stream in streams[:2]], np.uint16)
        if np.any(scales >= 0x7F80):
            raise InputError("a scale of this block is negative or not finite: the delta is damaged")
        symbols = _decode_symbols(*streams[2], kept, scheme.bits)
        if keep is None:
            kernels.dequantise(
                index, symbols, scales, scheme.span, float(scheme.levels), float(scheme.rescale), value
            )
        else:
            kernels.dequantise_factored(
                index, symbols, scales, scheme.span, float(scheme.levels), keep, value
            )
    else:
        low, high = (_decode(*stream, kept, "survivors") for stream in streams)
        divisor = np.array([scheme.rescale]) if keep is None else keep
        if not kernels.decode_bfloat16(low, high, divisor, value):
            raise InputError("a survivor of this block is not finite: the delta is damaged")
    return index, value


def apply_block(
    base_bits: Bits,
    dtype: str,
    index: NDArray[np.integer[Any]],
    value: NDArray[np.floating[Any]],
    *,
    in_place: bool = False,
) -> tuple[Bits, int]:
    """The weights ``base + value``, as raw bits of the shape of ``base_bits``, and how many overflowed.

    ``index`` holds distinct positions in the flattened block.  The sum is taken in float32 (float64 for
    F64) and rounded once, to nearest even; entries without a value, or with value 0, keep the base's bits.
    An overflow is a finite base that is finite no more.  ``in_place`` writes into ``base_bits``, which must then be
    contiguous.

    >>> base = np.zeros(3, np.uint16)
    >>> bits, overflow = apply_block(base, "BF16", np.array([1]), np.array([1.5], np.float32))
    >>> [hex(b) for b in bits], overflow
    (['0x0', '0x3fc0', '0x0'], 0)
    """
    form = _form(dtype)
    _check_bits(base_bits, form)
    if index.shape != value.shape or index.ndim != 1:
        raise InputError(f"there are {index.size} positions and {value.size} values: each needs the other")
    if index.size and not 0 <= int(index.min()) <= int(index.max()) < base_bits.size:
        raise InputError(f"a position lies outside the {base_bits.size} entries of the block")
    if in_place and not base_bits.flags.c_contiguous:
        raise InputError("only a contiguous block can be changed in place")
    bits = base_bits if in_place else np.array(base_bits, order="C")
    flat = bits.reshape(-1)
    if dtype == "BF16":
        narrow = np.ascontiguousarray(value, np.float32)
        return bits, int(kernels.add_bfloat16(flat, np.ascontiguousarray(index, np.int32), narrow))
    moved = np.flatnonzero(value)
    place = index[moved]
    wide = np.float64 if dtype == "F64" else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        old = flat[place].view(form.number).astype(wide)
        new = (old + value[moved].astype(wide)).astype(form.number)
    flat[place] = new.view(form.bits)
    lost = np.isfinite(old) & ~np.isfinite(new.astype(wide))
    return bits, int(np.count_nonzero(lost))


def drop_block(
    base_bits: Bits, finetuned_bits: Bits, dtype: str, start: int, scheme: Scheme
) -> tuple[NDArray[np.int32], NDArray[np.floating[Any]]]:
    """The survivors of a block that is dropped but not coded: positions, and ``(finetuned - base) / rescale`` there.

    The difference is taken in float32 (float64 for F64), as :func:`encode_block` takes it; then divided in float64.

    >>> base, finetuned = np.zeros((2, 2), np.uint32), np.full((2, 2), 3, np.float32).view(np.uint32)
    >>> drop_block(base, finetuned, "F32", 0, Scheme(16, 2**32, 0.5, (1, 2)))[1]
    array([6., 6., 6., 6.])
    """
    form = _form(dtype)
    rows, columns = _check_pair(base_bits, finetuned_bits, form)
    _check_place(start, rows * columns)
    index = _drawn_mask(start, rows * columns, scheme)
    value = np.empty(index.size)
    base, finetuned = _wide_bits(base_bits, form).reshape(-1), _wide_bits(finetuned_bits, form).reshape(-1)
    kernels.difference_at(base, finetuned, index, scheme.rescale, value)
    return index, value


def add_sparse(
    first: NDArray[np.integer[Any]],
    first_value: NDArray[np.float64],
    second: NDArray[np.integer[Any]],
    second_value: NDArray[np.float64],
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The sum of two sparse blocks: the positions (ascending) that either has, and the sums of the values there.

    >>> add_sparse(np.array([0, 2]), np.array([1.0, 2.0]), np.array([2, 5]), np.array([0.5, 3.0]))
    (array([0, 2, 5], dtype=int32), array([1. , 2.5, 3. ]))
    """
    if first.size == 0:
        return second.astype(np.int32, copy=False), second_value
    index, value = np.empty(first.size + second.size, np.int32), np.empty(first.size + second.size)
    filled = kernels.add_sparse(
        first.astype(np.int32, copy=False), first_value, second.astype(np.int32, copy=False), second_value,
        index, value,
    )  # fmt: skip
    return index[:filled], value[:filled]


def encode_lossless(base_bits: Bits, finetuned_bits: Bits, coding: Coding = "entropy") -> bytes:
    """Code ``finetuned`` exactly, given ``base``: the zigzag of the difference of the bits, by byte planes.

    Any unsigned dtype, equal shapes.  A small change of a float is a small change of its bits, so the high
    planes are nearly all zero.

    >>> base = np.array([10, 20, 30], np.uint16)
    >>> decode_lossless(encode_lossless(base, base + np.uint16(1)), base)
    array([11, 21, 31], dtype=uint16)
    """
    _check_unsigned(base_bits)
    if base_bits.dtype != finetuned_bits.dtype or base_bits.shape != finetuned_bits.shape:
        raise InputError("base and fine-tuned blocks must agree in dtype and shape")
    difference = finetuned_bits.reshape(-1) - base_bits.reshape(-1)
    signed = difference.view(difference.dtype.str.replace("u", "i"))
    zigzag = (difference << 1) ^ (signed >> (8 * difference.itemsize - 1)).view(difference.dtype)
    return _join(_LOSSLESS, zigzag.size, [_code(plane, coding) for plane in _planes(zigzag)])


def decode_lossless(payload: bytes, base_bits: Bits) -> Bits:
    """The inverse of :func:`encode_lossless`: the fine-tuned bits, of the shape of ``base_bits``."""
    _check_unsigned(base_bits)
    zigzag = _decode_planes(payload, _LOSSLESS, base_bits.dtype, base_bits.size)
    difference = (zigzag >> 1) ^ (0 - (zigzag & 1))
    return base_bits + difference.reshape(base_bits.shape)


def encode_exact(bits: Bits, coding: Coding = "entropy") -> bytes:
    """Code raw bits exactly, without a base, by byte planes; any unsigned dtype."""
    _check_unsigned(bits)
    return _join(_EXACT, bits.size, [_code(plane, coding) for plane in _planes(bits.reshape(-1))])


def decode_exact(payload: bytes, dtype: Any, count: int) -> Bits:
    """The inverse of :func:`encode_exact`: ``count`` elements of the unsigned ``dtype``, flat.

    >>> decode_exact(encode_exact(np.arange(4, dtype=np.uint64)), np.uint64, 4)
    array([0, 1, 2, 3], dtype=uint64)
    """
    return _decode_planes(payload, _EXACT, np.dtype(dtype), count)


# Checks ------------------------------------------------------------------------------------------------


def _form(dtype: str) -> _Float:
    try:
        return _FLOATS[dtype]
    except KeyError:
        raise InputError(
            f"a delta of dtype {dtype!r} cannot be coded; it takes {', '.join(DTYPES)}"
        ) from None


def _check_bits(bits: Bits, form: _Float) -> None:
    if bits.dtype != form.bits:
        raise InputError(f"raw bits of this dtype are {np.dtype(form.bits)}, not {bits.dtype}")


def _check_unsigned(bits: Bits) -> None:
    if bits.dtype.kind != "u":
        raise InputError(f"exact blocks take raw bits as unsigned integers, not {bits.dtype}")


def _check_pair(base_bits: Bits, finetuned_bits: Bits, form: _Float) -> tuple[int, int]:
    _check_bits(base_bits, form)
    _check_bits(finetuned_bits, form)
    if base_bits.ndim != 2 or base_bits.shape != finetuned_bits.shape:
        raise InputError(
            f"a block is [rows, columns], equal on both sides, not {list(base_bits.shape)} "
            f"and {list(finetuned_bits.shape)}"
        )
    rows, columns = base_bits.shape
    return rows, columns


def _check_place(start: int, count: int) -> None:
    if not (0 <= start < 1 << 63 and 0 <= count < 1 << 31):
        raise InputError(f"no block of {count} elements starts at {start}")


def _row_codes(factors: Factors, start: int, rows: int, columns: int) -> NDArray[np.uint8]:
    """The codes of the rows of a block, which must be whole rows of the matrix that the factors are for."""
    first = start // max(1, columns)
    if (
        columns != factors.column_codes.size
        or start % max(1, columns)
        or first + rows > factors.row_codes.size
    ):
        raise InputError(
            f"a block of {rows} x {columns} entries from {start} on does not lie in the "
            f"{factors.row_codes.size} x {factors.column_codes.size} matrix that its factors are for"
        )
    return factors.row_codes[first : first + rows]


def _key(scheme: Scheme) -> tuple[np.uint32, np.uint32]:
    return np.uint32(scheme.key[0]), np.uint32(scheme.key[1])


def _wide_bits(bits: Bits, form: _Float) -> Bits:
    """Bits the kernels read directly: bfloat16, float32, float64; other types become float32."""
    if form.number in (ml_dtypes.bfloat16, np.float32, np.float64):
        return np.ascontiguousarray(bits)
    return np.ascontiguousarray(bits).view(form.number).astype(np.float32).view(np.uint32)


def _stats(
    moments: NDArray[np.float64],
    totals: NDArray[np.float64],
    counts: NDArray[np.int64],
    first: NDArray[np.int64],
    start: int,
) -> BlockStats:
    def event(which: int) -> tuple[int, int | None]:
        number = int(counts[which])
        return number, start + int(first[which]) if number else None

    return BlockStats(
        int(counts[kernels.KEPT]),
        int(counts[kernels.CHANGED]),
        moments[kernels.ENERGY],
        moments[kernels.VARIANCE],
        moments[kernels.PROXY],
        moments[kernels.REALISED],
        float(totals[kernels.DELTA_FOURTH]),
        float(totals[kernels.STEP_FOURTH]),
        float(totals[kernels.LARGEST_DELTA]),
        float(totals[kernels.LARGEST_VALUE]),
        *event(kernels.BASE_NONFINITE),
        *event(kernels.FINETUNED_NONFINITE),
        *event(kernels.UNCODABLE),
        *event(kernels.OVERFLOW),
        *(moments[[kernels.FACTORED_VARIANCE, kernels.FACTORED_PROXY]] if len(moments) > 4 else ()),
    )


# Streams -----------------------------------------------------------------------------------------------


def _planes(numbers: Bits) -> list[NDArray[np.uint8]]:
    """The bytes of unsigned integers, lowest plane first."""
    table = np.ascontiguousarray(numbers).astype(numbers.dtype.newbyteorder("<"), copy=False).view(np.uint8)
    table = table.reshape(-1, numbers.itemsize)
    return [np.ascontiguousarray(table[:, plane]) for plane in range(numbers.itemsize)]


def _merge(planes: Sequence[NDArray[np.uint8]], dtype: Any) -> Bits:
    table = np.empty((planes[0].size, len(planes)), np.uint8)
    for number, plane in enumerate(planes):
        table[:, number] = plane
    little = np.dtype(dtype).newbyteorder("<")
    return table.reshape(-1).view(little).astype(dtype, copy=False)


def _deflate(stream: NDArray[np.uint8], strategy: int) -> bytes:
    coder = zlib.compressobj(6, zlib.DEFLATED, -15, 9, strategy)
    return coder.compress(stream.data) + coder.flush()


def _deflated(stream: NDArray[np.uint8], room: int) -> bytes | None:
    """The stream in fewer than ``room`` bytes by raw DEFLATE, or None.

    The histogram decides what is tried, so that no time goes into a stream that will not shrink: Huffman
    codes when its entropy promises a gain, runs as well when one value takes more than half of it.
    """
    if stream.size < 16:
        return None
    counts = kernels.histogram(stream)
    share = counts[counts > 0] / stream.size
    promised = -float(share @ np.log2(share)) / 8 * stream.size + share.size / 2
    best = None
    if promised < 0.98 * room:
        best = _deflate(stream, zlib.Z_HUFFMAN_ONLY)
    if share.max() > 0.5:
        runs = _deflate(stream, zlib.Z_RLE)
        best = runs if best is None or len(runs) < len(best) else best
    return best if best is not None and len(best) < room else None


def _code(stream: NDArray[np.uint8], coding: Coding) -> tuple[int, bytes]:
    packed = _deflated(stream, stream.size) if coding == "entropy" else None
    return (_RAW, stream.tobytes()) if packed is None else (_DEFLATE, packed)


def _code_symbols(symbols: NDArray[np.uint8], bits: int, coding: Coding) -> tuple[int, bytes]:
    room = -(-symbols.size * bits // 8)
    if coding == "entropy":
        whole = _pack(symbols, bits, bits * (8 // bits))
        packed = _deflated(whole, room)
        if packed is not None:
            return _DEFLATE_SYMBOLS, packed
    return _RAW, _pack(symbols, bits, 8).tobytes()


def _pack(symbols: NDArray[np.uint8], bits: int, width: int) -> NDArray[np.uint8]:
    packed = np.empty(-(-symbols.size * bits // width), np.uint8)
    kernels.pack_symbols(symbols, bits, width, packed)
    return packed


def _code_mask(mask: NDArray[np.uint8], coding: Coding) -> tuple[int, bytes]:
    index = np.flatnonzero(mask)
    gaps = np.empty(index.size + mask.size // 255 + 1, np.uint8)
    gaps = gaps[: kernels.encode_gaps(index, gaps)]
    bitmap, by_gap = _code(np.packbits(mask, bitorder="little"), coding), _code(gaps, coding)
    if len(by_gap[1]) < len(bitmap[1]):
        return (_GAPS if by_gap[0] == _RAW else _DEFLATE_GAPS), by_gap[1]
    return bitmap


def _join(kind: int, number: int, streams: Sequence[tuple[int, bytes]]) -> bytes:
    head = [_HEAD.pack(kind, len(streams), number)]
    head += [_STREAM.pack(coding, len(stream)) for coding, stream in streams]
    return b"".join(head + [stream for _, stream in streams])


def _split(payload: bytes, kind: int, most: int, names: Sequence[str]) -> tuple[int, list[tuple[int, bytes]]]:
    """The number of entries, and (coding, bytes) of each stream."""
    table = _HEAD.size + len(names) * _STREAM.size
    if len(payload) < table:
        raise InputError(
            f"a block of {len(payload)} bytes has no room for its header of {table}: the delta is cut"
        )
    found, streams, number = _HEAD.unpack_from(payload)
    if found != kind or streams != len(names) or number > most:
        raise InputError(
            f"a block says it is of kind {found} with {streams} streams and {number} entries; its plan "
            f"asks for kind {kind}, {len(names)} streams and at most {most} entries: the delta is damaged"
        )
    out, at = [], table
    for place in range(streams):
        coding, length = _STREAM.unpack_from(payload, _HEAD.size + place * _STREAM.size)
        out.append((coding, payload[at : at + length]))
        at += length
    if at != len(payload):
        raise InputError(
            f"the streams of a block take {at} bytes and it has {len(payload)}: the delta is damaged"
        )
    return number, out


def _inflate(stream: bytes, most: int, name: str) -> bytes:
    decoder = zlib.decompressobj(-15)
    try:
        out = decoder.decompress(stream, most + 1)
    except zlib.error as error:
        raise InputError(
            f"the {name} of a block cannot be inflated ({error}): the delta is damaged"
        ) from None
    if not decoder.eof or decoder.unused_data or len(out) > most:
        raise InputError(f"the {name} of a block inflate to the wrong length: the delta is damaged")
    return out


def _decode(coding: int, stream: bytes, size: int, name: str) -> NDArray[np.uint8]:
    if coding == _DEFLATE:
        stream = _inflate(stream, size, name)
    elif coding != _RAW:
        raise InputError(f"the {name} of a block have an unknown coding {coding}: the delta is damaged")
    if len(stream) != size:
        raise InputError(f"the {name} of a block take {len(stream)} bytes, not {size}: the delta is damaged")
    return np.frombuffer(stream, np.uint8)


def _decode_symbols(coding: int, stream: bytes, count: int, bits: int) -> NDArray[np.uint8]:
    width = bits * (8 // bits) if coding == _DEFLATE_SYMBOLS else 8
    inner = _DEFLATE if coding == _DEFLATE_SYMBOLS else coding
    packed = _decode(inner, stream, -(-count * bits // width), "codes")
    symbols = np.empty(count, np.uint8)
    spare = kernels.unpack_symbols(packed, bits, width, symbols)
    if spare or (count and int(symbols.max()) > 2 * _LEVELS[bits]):
        raise InputError("a code of this block is out of range: the delta is damaged")
    return symbols


def _decode_mask(coding: int, stream: bytes, kept: int, count: int) -> NDArray[np.int32]:
    index = np.empty(kept, np.int32)
    if coding in (_GAPS, _DEFLATE_GAPS):
        most = kept + count // 255 + 1
        raw = _inflate(stream, most, "mask") if coding == _DEFLATE_GAPS else stream[: most + 1]
        found = kernels.decode_gaps(np.frombuffer(raw, np.uint8), count, index)
    else:
        bitmap = _decode(coding, stream, -(-count // 8), "mask")
        positions = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
        found = positions.size
        if found == kept and (found == 0 or positions[-1] < count):
            index[:] = positions
        else:
            found = -1
    if found != kept:
        raise InputError("the stored mask of a block does not fit its survivors: the delta is damaged")
    return index


def _drawn_mask(start: int, count: int, scheme: Scheme) -> NDArray[np.int32]:
    index = np.empty(count + kernels.SLACK, np.int32)
    found = kernels.survivors(*_key(scheme), np.uint64(start), count, np.uint64(scheme.threshold), index)
    return index[:found]


def _factored_mask(
    start: int, count: int, scheme: Scheme, factors: Factors
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Positions of the survivors, and the keep probability of each."""
    columns = factors.column_codes.size
    rows = count // columns if columns else 0
    if count != rows * columns:
        raise InputError(f"a block of {count} entries is no whole number of rows of {columns}")
    row_codes = _row_codes(factors, start, rows, columns)
    index, keep = np.empty(count, np.int32), np.empty(count)
    filled = 0
    if count:
        filled = kernels.survivors_factored(
            *_key(scheme), np.uint64(start), count, row_codes, factors.column_codes, factors.thresholds, index, keep
        )  # fmt: skip
    return index[:filled], keep[:filled]


def _decode_planes(payload: bytes, kind: int, dtype: np.dtype[Any], count: int) -> Bits:
    names = [f"bytes of plane {plane}" for plane in range(dtype.itemsize)]
    number, streams = _split(payload, kind, count, names)
    if number != count:
        raise InputError(
            f"a block holds {number} entries and its tensor asks for {count}: the delta is damaged"
        )
    planes = [_decode(*stream, count, name) for stream, name in zip(streams, names, strict=True)]
    return _merge(planes, dtype)
