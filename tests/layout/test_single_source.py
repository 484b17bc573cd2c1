"""Only the layout room may derive a place in a page: nobody else multiplies a head count by a page size.

In Python the check follows products through plain assignments of a function; in WGSL and JavaScript it reads
products as they are written.  Dividing by a page size (which page is token t on?) is everyone's right.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "emscripten", reason="reads the checkout")
ROOT = Path(__file__).parents[2]
BOTH = {"heads", "page"}
SAME_VALUE = {"int", "min", "max", "abs"}


def mark(name: str) -> set[str]:
    """What an identifier counts: {"heads"}, {"page"} for tokens per page, or nothing."""
    parts = set(re.split(r"_+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
    if parts & {"head", "heads"} and not parts & {"dim", "dims", "size", "bytes", "stride", "words"}:
        return {"heads"}
    if parts & {"page", "block", "slot"} and parts & {"tokens", "size", "len", "length"}:
        return {"page"}
    return set()


class Products(ast.NodeVisitor):
    """Line numbers of products of a head count and a page size."""

    def __init__(self) -> None:
        self.lines: list[int] = []
        self.known: dict[str, set[str]] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer, self.known = self.known, dict(self.known)
        self.generic_visit(node)
        self.known = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.known[target.id] = self.marks(node.value)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult):
            self.judge(node, [self.marks(node.left), self.marks(node.right)])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult):
            both = [self.marks(node.target), self.marks(node.value)]
            self.judge(node, both)
            if isinstance(node.target, ast.Name):
                self.known[node.target.id] = set().union(*both)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if called(node) == "prod" and node.args and isinstance(node.args[0], ast.Tuple | ast.List):
            self.judge(node, [self.marks(item) for item in node.args[0].elts])

    def judge(self, node: ast.expr | ast.stmt, factors: list[set[str]]) -> None:
        if set().union(*factors) == BOTH and BOTH not in factors:
            self.lines.append(node.lineno)

    def marks(self, node: ast.expr) -> set[str]:
        match node:
            case ast.Name(id=name):
                return mark(name) | self.known.get(name, set())
            case ast.Attribute(attr=name):
                return mark(name)
            case ast.Subscript(slice=ast.Constant(value=str() as name)):
                return mark(name)
            case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Div() | ast.Mod()):
                return self.marks(left)
            case ast.BinOp(left=left, right=right):
                return self.marks(left) | self.marks(right)
            case ast.IfExp(body=body, orelse=orelse):
                return self.marks(body) | self.marks(orelse)
            case ast.Call(args=args) if called(node) in SAME_VALUE:
                return set().union(*map(self.marks, args))
        return set()


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def in_python(text: str) -> list[int]:
    found = Products()
    found.visit(ast.parse(text))
    return found.lines


def in_shader(text: str) -> list[int]:
    """The same for WGSL and JavaScript, line by line: factors between other operators, divisors left out."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"//.*", "", line)
        code = re.sub(r"[/%]\s*[\w.]+", "", code.replace("(", " ").replace(")", " "))
        for term in re.split(r"[^\w.\s*]", code):
            factors = [mark(re.split(r"[.\s]", factor.strip())[-1]) for factor in term.split("*")]
            if set().union(*factors) == BOTH:
                lines.append(number)
    return lines


def sources() -> list[Path]:
    python = [path for path in (ROOT / "webkv").rglob("*.py") if path.parent != ROOT / "webkv/layout"]
    return sorted([*python, *(ROOT / "shaders").rglob("*.wgsl"), *(ROOT / "web").rglob("*.js")])


def test_only_the_layout_room_multiplies_heads_by_page_size() -> None:
    found = []
    for path in sources():
        check = in_python if path.suffix == ".py" else in_shader
        found += [f"{path.relative_to(ROOT)}:{line}" for line in check(path.read_text())]
    assert found == []


def test_the_layout_rooms_own_neighbours_are_read() -> None:
    rooms = {path.relative_to(ROOT).parts[:2] for path in sources()}
    assert ("webkv", "cache") in rooms
    assert ("webkv", "layout") not in rooms


@pytest.mark.parametrize(
    "text",
    [
        "a = kv_heads * page_tokens * dim",
        "a = 2 * (shape.kv_heads * dim) * shape.page_tokens",
        "row = num_kv_heads * head_dim\na = page * page_size * row",
        "def f():\n    row = heads\n    row *= dim\n    return row * block_size",
        "a = math.prod((2, heads, page_tokens, dim))",
        "a = sizes['heads'] * max(1, sizes['page_tokens'])",
        "rows = heads\nrows *= page_tokens",
    ],
)
def test_python_products_are_found(text: str) -> None:
    assert in_python(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = head_dim * page_tokens",
        "a = q_heads * head_dim",
        "a = strides.head * head + strides.token * (token % page_tokens)",
        "a = heads * (tokens // page_tokens)",
        "a = heads * -(-tokens // page_tokens)",
        "layout = kv(heads=heads, page_tokens=page_tokens, dim=dim)",
        "shape = (1, pages, 2, heads, page_tokens, dim)",
        "a = pages * layout.page_bytes(heads, page_tokens)",
        "def f():\n    row = heads * dim\ndef g(row):\n    return row * page_tokens",
    ],
)
def test_innocent_python_is_not_flagged(text: str) -> None:
    assert in_python(text) == []


@pytest.mark.parametrize(
    "text",
    ["let a = KV_HEADS * PAGE_TOKENS * D;", "let a = (u32(page) * (D * KV_HEADS)) * params.page_size + d;"],
)
def test_shader_products_are_found(text: str) -> None:
    assert in_shader(text) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "let a = page * K_PAGE + head * K_HEAD + (t % PAGE_TOKENS) * K_TOKEN;",
        "let a = t / PAGE_TOKENS * KV_HEADS;",
        "let a = HEAD_DIM * PAGE_TOKENS; // KV_HEADS * PAGE_TOKENS",
        "let a = KV_HEADS * D + PAGE_TOKENS;",
    ],
)
def test_innocent_shaders_are_not_flagged(text: str) -> None:
    assert in_shader(text) == []
