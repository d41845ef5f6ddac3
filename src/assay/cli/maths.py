"""LaTeX statements as Unicode text for a terminal.

A small reader of the subset that claims are written in.  A macro that it does not know stays as it is
written, so nothing is lost in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SYMBOLS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "varepsilon": "ε", "zeta": "ζ",
    "eta": "η", "theta": "θ", "vartheta": "ϑ", "iota": "ι", "kappa": "κ", "lambda": "λ", "mu": "μ",
    "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "varrho": "ϱ", "sigma": "σ", "tau": "τ", "upsilon": "υ", "phi": "φ",
    "varphi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ",
    "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π", "Sigma": "Σ", "Upsilon": "Υ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω",
    "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠", "approx": "≈", "equiv": "≡", "sim": "~",
    "lt": "<", "gt": ">", "ll": "≪", "gg": "≫", "in": "∈", "notin": "∉", "subset": "⊂", "subseteq": "⊆",
    "cup": "∪", "cap": "∩", "emptyset": "∅", "forall": "∀", "exists": "∃", "infty": "∞", "partial": "∂",
    "nabla": "∇", "cdot": "·", "times": "×", "circ": "∘", "odot": "⊙", "pm": "±", "mid": "|", "to": "→",
    "mapsto": "↦", "Rightarrow": "⇒", "implies": "⇒", "iff": "⇔", "Longrightarrow": "⇒", "land": "∧", "lor": "∨",
    "neg": "¬", "ldots": "…", "dots": "…", "cdots": "⋯", "sum": "∑", "prod": "∏", "int": "∫", "langle": "⟨",
    "rangle": "⟩", "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "lVert": "‖", "rVert": "‖",
    "Vert": "‖", "|": "‖", "lvert": "|", "rvert": "|", "vert": "|", "top": "ᵀ", "ell": "ℓ", "prime": "′", "star": "*",
    "ast": "*", "setminus": "∖", "wedge": "∧", "vee": "∨", "oplus": "⊕", "otimes": "⊗", "quad": "  ", "qquad": "    ",
    ",": " ", ";": " ", ":": " ", " ": " ", "!": "", "{": "{", "}": "}", "%": "%", "_": "_", "#": "#", "&": "&",
    "$": "$", "\\": "\n", "colon": ":", "bigl": "", "bigr": "", "Bigl": "", "Bigr": "", "biggl": "", "biggr": "",
    "Biggl": "", "Biggr": "", "big": "", "Big": "", "bigg": "", "Bigg": "", "left": "", "right": "", "middle": "",
    "displaystyle": "", "textstyle": "", "limits": "", "nolimits": "",
}  # fmt: skip
_FUNCTIONS = {
    "ln",
    "log",
    "exp",
    "min",
    "max",
    "sup",
    "inf",
    "lim",
    "Pr",
    "det",
    "tr",
    "arg",
    "cos",
    "sin",
    "tan",
    "cosh",
    "sinh",
    "tanh",
    "dim",
    "ker",
    "sgn",
    "gcd",
    "deg",
}
_STYLES = {
    "mathrm",
    "mathit",
    "mathbf",
    "mathsf",
    "mathcal",
    "mathtt",
    "text",
    "textrm",
    "textit",
    "textbf",
    "operatorname",
    "boldsymbol",
    "mbox",
}
_ACCENTS = {"hat": "\u0302", "widehat": "\u0302", "bar": "\u0304", "overline": "\u0304", "tilde": "\u0303",
            "widetilde": "\u0303", "dot": "\u0307", "vec": "\u20d7"}  # fmt: skip
_BLACKBOARD = {"R": "ℝ", "N": "ℕ", "Z": "ℤ", "Q": "ℚ", "C": "ℂ", "E": "𝔼", "P": "ℙ", "1": "𝟙"}
_SUPERSCRIPT = str.maketrans("0123456789+-=()niTjkmptx*", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱᵀʲᵏᵐᵖᵗˣ*")
_SUBSCRIPT = str.maketrans("0123456789+-=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")
_TOKEN = re.compile(r"\\[A-Za-z]+\s*|\\.|[{}^_&~]|\s+|.", re.DOTALL)


def to_unicode(latex: str) -> str:
    r"""One line (or several, at ``\\``) of Unicode that says the same as `latex`.

    >>> to_unicode(r"\mathbb{E} H_q^2 = b_q^2 + \frac{p(1-p)}{q^2} Q")
    '𝔼 H_q² = b_q² + (p(1−p)/q²) Q'
    >>> to_unicode(r"\Bigl(\frac1n \sum_{i=1}^n x_i\Bigr)^n \le \sqrt{2}")
    '((1/n) ∑_{i=1}^n xᵢ)ⁿ ≤ √2'
    """
    reader = _Reader(_TOKEN.findall(latex))
    lines = _without_double_brackets(reader.sequence(None)).split("\n")
    return "\n".join(
        re.sub(r" {2,}", lambda m: " " if len(m[0]) < 4 else "   ", line).strip() for line in lines
    ).strip()


class _Reader:
    """A reader over tokens; each method returns text and moves on."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> str | None:
        token = self._peek()
        self._at += 1
        return token

    def sequence(self, end: str | None) -> str:
        """Everything up to the token `end`, which is taken too."""
        return "".join(self._parts(end))

    def _parts(self, end: str | None) -> Iterator[str]:
        last = ""
        while (token := self._next()) is not None and token != end:
            if token in ("^", "_"):
                yield self._script(token, last)
            else:
                if last[-1:].isalnum() and token[1:].strip() in _FUNCTIONS:
                    yield " "
                last = self._atom(token)
                yield last

    def _group(self) -> str:
        """The argument of a macro: a group, or one token."""
        while (token := self._peek()) is not None and token.isspace():
            self._at += 1
        token = self._next()
        if token is None:
            return ""
        return self.sequence("}") if token == "{" else self._atom(token)

    def _atom(self, token: str) -> str:
        if token.startswith("\\"):
            return self._macro(token[1:].strip() or " ", token)
        if token == "{":
            return self.sequence("}")
        if token in ("}", "&"):
            return ""
        if token.isspace() or token == "~":
            return " "
        return "−" if token == "-" else token

    def _macro(self, name: str, token: str) -> str:
        if name in ("frac", "tfrac", "dfrac"):
            above, below = self._group(), self._group()
            return f"({_bracket(above, product=False)}/{_bracket(below)})"
        if name == "binom":
            return f"C({self._group()}, {self._group()})"
        if name == "sqrt":
            return "√" + _bracket(self._group())
        if name == "mathbb":
            letter = self._group()
            return _BLACKBOARD.get(letter, letter)
        if name in _ACCENTS:
            letter = self._group()
            return letter + _ACCENTS[name] if len(letter) == 1 else f"{name}({letter})"
        if name in ("begin", "end"):
            kind = self._group()
            return "{ " if (name, kind) == ("begin", "cases") else ""
        if name in _STYLES:
            return self._styled(name)
        if name in _FUNCTIONS:
            following = self._peek()
            glued = (
                following is None
                or following[0] in "([{^_)}"
                or following.startswith(("\\left", "\\big", "\\Big"))
            )
            return name + ("" if glued else " ")
        if name in ("left", "right") and self._peek() == ".":
            self._at += 1
            return ""
        if name in _SYMBOLS:
            return _SYMBOLS[name] + (
                " " if token[-1].isspace() and not name.startswith(("left", "right", "big", "Big")) else ""
            )
        return token

    def _styled(self, name: str) -> str:
        """Words keep their hyphens; a starred ``operatorname*`` loses its star."""
        if self._peek() == "*":
            self._at += 1
        text = self._group().replace("−", "-" if name.startswith("text") or name == "mbox" else "−")
        return text

    def _script(self, mark: str, last: str) -> str:
        text = self._group().strip()
        if text == "ᵀ":
            return text
        table = _SUPERSCRIPT if mark == "^" else _SUBSCRIPT
        plain = text.replace("−", "-")
        if last.strip() not in ("∑", "∏", "∫") and plain and all(ord(c) in table for c in plain):
            return plain.translate(table)
        return mark + (text if len(text) == 1 else "{" + text + "}")


def _bracket(text: str, product: bool = True) -> str:
    """`text` in brackets unless it is one unit, or (without `product`) a product."""
    text = text.strip()
    outermost, depth = "", 0
    for character in text:
        depth -= character in ")]}⟩"
        outermost += character if depth == 0 else ""
        depth += character in "([{⟨"
    sums = re.search(r"(?<=.)[+−<>≤≥=,/]", outermost)
    factors = product and re.search(r"[\s·]|\(\).|.√", outermost)
    return f"({text})" if sums or factors else text


def _without_double_brackets(text: str) -> str:
    """`text` with ``((x))`` written ``(x)``."""
    opened: list[int] = []
    partner: dict[int, int] = {}
    for i, character in enumerate(text):
        if character == "(":
            opened.append(i)
        elif character == ")" and opened:
            partner[opened.pop()] = i
    double = {i for i in partner if partner.get(i + 1) == partner[i] - 1}
    dropped = double | {partner[i] for i in double}
    return "".join(c for i, c in enumerate(text) if i not in dropped)
