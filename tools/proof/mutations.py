"""Mutations of a server's source: realistic mistakes, each in one place of the syntax tree.

`edits` lists the mistakes that a source can have, always in the same order, so that a number names
one of them. An edit changes the tree from which it was listed. Line numbers stay as they are. The
functions of effects are left as they are, because a replay does not run them; that an effect loses
its decorator is a mistake of the list.
"""

import ast
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, TypeAlias

import attrs

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Block: TypeAlias = list[ast.stmt]

_TIMEOUTS: Final = {"move_on_after", "fail_after", "timeout"}
_NO_LOCKS: Final = {"open_nursery", "CancelScope", "open_memory_channel", "closing", "ExitStack"}
_LEVELS: Final = {"debug": "info", "info": "warning", "warning": "error", "error": "info"}
_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
}
_FUNCTIONS: Final = {"sorted": "list", "min": "max", "max": "min", "all": "any", "any": "all"}
_REMOVED: Final = {
    "progress": "removed progress",
    **dict.fromkeys(_LEVELS, "removed log"),
    "cancel": "removed cancellation",
    "set": "removed wake-up",
    "notify_all": "removed wake-up",
    **dict.fromkeys(("sleep", "checkpoint", "wait"), "removed wait"),
}


@attrs.frozen
class Edit:
    """A mistake that `apply` makes in a tree.

    `outermost` is the name of the module's function around it, empty if there is none; `before` is
    the source of the statement that `apply` changes, and `after` returns it afterwards.
    """

    mistake: str
    line: int
    outermost: str
    before: str
    after: Callable[[], str]
    apply: Callable[[], object]


def edits(tree: ast.Module) -> list[Edit]:
    """Return all mistakes of the list that can be made in a module, in the order of the source."""
    return list(_Finder(tree).edits())


def drawn(tree: ast.Module, seed: int, *, without: Collection[str] = ()) -> list[int]:
    """Return the numbers of all edits, such that every mistake comes early; a seeded order.

    Functions whose names are in `without` are left out.
    """
    by_mistake: defaultdict[str, list[int]] = defaultdict(list)
    for number, edit in enumerate(edits(tree)):
        if edit.outermost not in without:
            by_mistake[edit.mistake].append(number)
    source = random.Random(seed)
    for numbers in by_mistake.values():
        source.shuffle(numbers)
    rows = [by_mistake[mistake] for mistake in sorted(by_mistake)]
    longest = max(map(len, rows), default=0)
    return [row[at] for at in range(longest) for row in rows if at < len(row)]


# Finding ------------------------------------------------------------------------------------------


@attrs.define
class _Finder:
    """Lists the edits of a module; `outermost` is the name of the function being looked at."""

    tree: ast.Module
    outermost: str = ""
    effects: set[str] = attrs.field(factory=set[str], init=False)

    def edits(self) -> Iterator[Edit]:
        for node in self.tree.body:
            if isinstance(node, Function) and _has_decorator(node, "effect"):
                self.effects.add(node.name)
        for node in self.tree.body:
            if isinstance(node, Function):
                yield from self._in_function(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and target.id.isupper():
                    yield from self._in_expressions(node, node.value)

    def _edit(
        self, mistake: str, statement: ast.stmt | ast.ExceptHandler, apply: Callable[[], object]
    ) -> Edit:
        return Edit(
            mistake=mistake,
            line=statement.lineno,
            outermost=self.outermost,
            before=_first_line(statement),
            after=lambda: _first_line(statement),
            apply=apply,
        )

    def _removal(self, mistake: str, block: Block, at: int) -> Edit:
        statement = block[at]
        return attrs.evolve(
            self._edit(mistake, statement, lambda: _replace(block, at, _passing(statement))),
            after=lambda: "(removed)",
        )

    # Functions.

    def _in_function(self, function: Function) -> Iterator[Edit]:
        is_outermost = not self.outermost
        if is_outermost:
            self.outermost = function.name
        if _has_decorator(function, "effect"):
            yield self._lost_effect(function)
        else:
            if function.decorator_list:
                yield from self._in_schema(function)
            yield from self._in_block(function.body)
        if is_outermost:
            self.outermost = ""

    def _lost_effect(self, function: Function) -> Edit:
        def apply() -> None:
            function.decorator_list = []

        edit = self._edit("lost @effect", function, apply)
        return attrs.evolve(edit, before="@effect", after=lambda: f"def {function.name}(…)")

    def _in_schema(self, function: Function) -> Iterator[Edit]:
        """Yield changes of what is listed: description, defaults, constraints."""
        first = function.body[0]
        if ast.get_docstring(function) and isinstance(first, ast.Expr):
            text: Any = first.value
            edit = self._changed("changed schema", first, text, "value", f"Please: {text.value}")
            yield attrs.evolve(edit, line=function.lineno)
        arguments = function.args
        defaults = [*arguments.defaults, *(each for each in arguments.kw_defaults if each)]
        annotations = [each.annotation for each in arguments.args if each.annotation]
        for node in [*defaults, *annotations]:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant):
                    yield from self._other_default(function, inner)

    def _other_default(self, function: Function, constant: ast.Constant) -> Iterator[Edit]:
        value = constant.value
        if isinstance(value, bool):
            changed: object = not value
        elif isinstance(value, int | float):
            changed = value + 1
        elif isinstance(value, str):
            changed = value + "s"
        else:
            return
        edit = self._changed("changed schema", function, constant, "value", changed)
        arguments = function.args
        yield attrs.evolve(
            edit,
            before=ast.unparse(arguments),
            after=lambda: ast.unparse(arguments),
        )

    # Statements.

    def _in_block(self, block: Block, *, endless: bool = False) -> Iterator[Edit]:
        """Yield the edits of a block; if it could loop without end, only those that let it wait."""
        for at, statement in enumerate(block):
            if _is_docstring(statement):
                continue
            if isinstance(statement, Function):
                yield from self._in_function(statement)
                continue
            if not endless or isinstance(statement, ast.Try | ast.If):
                yield from self._of_statement(block, at)
            if at + 1 < len(block) and _may_swap(statement, block[at + 1]):
                yield self._swap(block, at)
            for field, value in ast.iter_fields(statement):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    is_loop = endless or isinstance(statement, ast.While)
                    yield from self._in_block(value, endless=is_loop)
                elif field == "handlers":
                    for handler in value:
                        yield from self._in_block(handler.body)
                elif field == "items":
                    for item in value:
                        yield from self._in_expressions(statement, item.context_expr)
                elif isinstance(value, ast.expr) and not isinstance(statement, ast.AnnAssign):
                    yield from self._in_expressions(statement, value)
            if isinstance(statement, ast.AnnAssign) and statement.value is not None:
                yield from self._in_expressions(statement, statement.value)

    def _swap(self, block: Block, at: int) -> Edit:
        def apply() -> None:
            block[at], block[at + 1] = block[at + 1], block[at]

        first, second = _first_line(block[at]), _first_line(block[at + 1])
        edit = self._edit("wrong order", block[at], apply)
        return attrs.evolve(edit, before=f"{first}; {second}", after=lambda: f"{second}; {first}")

    def _of_statement(self, block: Block, at: int) -> Iterator[Edit]:
        statement = block[at]
        match statement:
            case ast.Expr(value=value):
                yield from self._of_call(block, at, value)
            case ast.With() | ast.AsyncWith():
                yield from self._of_with(block, at, statement)
            case ast.Try() | ast.TryStar():
                yield from self._of_try(block, at, statement)
            case ast.Raise(exc=ast.Call() as error):
                other = ast.Name("RuntimeError", ast.Load())
                edit = self._changed("other exception", statement, error, "func", other)
                yield edit
                yield self._removal("removed error", block, at)
            case ast.If(test=test):
                negated = ast.UnaryOp(ast.Not(), test)
                yield self._changed("negated condition", statement, statement, "test", negated)
            case ast.AugAssign() | ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
                yield self._removal("removed assignment", block, at)
            case ast.Return(value=ast.expr()):
                nothing = ast.Constant(None)
                yield self._changed("lost result", statement, statement, "value", nothing)
            case _:
                pass

    def _of_call(self, block: Block, at: int, value: ast.expr) -> Iterator[Edit]:
        statement = block[at]
        call = value.value if isinstance(value, ast.Await) else value
        if not isinstance(call, ast.Call):
            return
        name = _name_of(call.func)
        yield self._removal(_REMOVED.get(name, "removed call"), block, at)
        if name == "start_soon":
            in_a_row = ast.Expr(ast.Await(ast.Call(call.args[0], call.args[1:], [])))
            yield self._replaced("in a row, not at once", block, at, in_a_row)
        elif isinstance(value, ast.Await) and name != "checkpoint":
            twice = ast.If(ast.Constant(1), [statement, statement], [])
            edit = self._replaced("repeated call", block, at, twice)
            yield attrs.evolve(edit, after=lambda: f"{edit.before}, twice")

    def _replaced(self, mistake: str, block: Block, at: int, other: ast.stmt) -> Edit:
        edit = self._edit(mistake, block[at], lambda: _replace(block, at, other))
        return attrs.evolve(edit, after=lambda: _first_line(other))

    def _of_with(
        self, block: Block, at: int, statement: ast.With | ast.AsyncWith
    ) -> Iterator[Edit]:
        unwrapped = ast.If(ast.Constant(1), statement.body, [])
        for item in statement.items:
            expression = item.context_expr
            name = _name_of(expression.func) if isinstance(expression, ast.Call) else ""
            if name in _TIMEOUTS:
                scope = ast.Attribute(ast.Name("trio", ast.Load()), "CancelScope", ast.Load())
                unlimited = ast.Call(scope, [], [])
                edit = self._changed("removed timeout", statement, item, "context_expr", unlimited)
                yield attrs.evolve(edit, after=lambda: "(no timeout)")
            elif isinstance(expression, ast.Call) and any(
                keyword.arg == "shield" for keyword in expression.keywords
            ):
                yield self._changed("removed shield", statement, expression, "keywords", [])
            elif item.optional_vars is None and name not in _NO_LOCKS and len(statement.items) == 1:
                edit = self._replaced("removed lock", block, at, unwrapped)
                yield attrs.evolve(edit, after=lambda: "(removed)")

    def _of_try(self, block: Block, at: int, statement: ast.Try | ast.TryStar) -> Iterator[Edit]:
        unwrapped = ast.If(ast.Constant(1), [*statement.body, *statement.orelse], [])
        if statement.finalbody:
            mistake, line = "removed clean-up", statement.finalbody[0].lineno
            if statement.handlers:
                edit = self._changed(mistake, statement, statement, "finalbody", [])
            else:
                edit = self._replaced(mistake, block, at, unwrapped)
            yield attrs.evolve(edit, line=line, before="finally:", after=lambda: "(removed)")
        for number, handler in enumerate(statement.handlers):
            others = [*statement.handlers[:number], *statement.handlers[number + 1 :]]
            if others or statement.finalbody:
                edit = self._changed("removed except", statement, statement, "handlers", others)
            else:
                edit = self._replaced("removed except", block, at, unwrapped)
            before = f"except {ast.unparse(handler.type) if handler.type else ''}:"
            line = handler.body[0].lineno
            yield attrs.evolve(edit, line=line, before=before, after=lambda: "(removed)")

    # Expressions.

    def _in_expressions(self, statement: ast.stmt, expression: ast.expr) -> Iterator[Edit]:
        texts_in_f_strings = {
            id(value)
            for node in ast.walk(expression)
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None
            for value in ast.walk(node.format_spec)
        }
        for node in ast.walk(expression):
            match node:
                case ast.Constant() if id(node) not in texts_in_f_strings:
                    yield from self._of_constant(statement, node)
                case ast.Compare(ops=[comparison]) if type(comparison) in _COMPARISONS:
                    other = [_COMPARISONS[type(comparison)]()]
                    yield self._changed("other comparison", statement, node, "ops", other)
                case ast.BinOp(left=left, op=operator, right=right) if type(
                    operator
                ) in _OPERATORS and not (_is_text(left) or _is_text(right)):
                    changed = _OPERATORS[type(operator)]()
                    yield self._changed("other operator", statement, node, "op", changed)
                case ast.Call():
                    yield from self._of_inner_call(statement, node)
                case _:
                    pass

    def _of_constant(self, statement: ast.stmt, constant: ast.Constant) -> Iterator[Edit]:
        value = constant.value
        if isinstance(value, bool) or value is None:
            return
        if isinstance(value, int):
            yield self._changed("off by one", statement, constant, "value", value + 1)
            if value > 0:
                yield self._changed("off by one", statement, constant, "value", value - 1)
        elif isinstance(value, float):
            yield self._changed("other duration", statement, constant, "value", value * 10)
            yield self._changed("other duration", statement, constant, "value", value / 10)
        elif isinstance(value, str) and value.strip():
            yield self._changed("other text", statement, constant, "value", f"{value}s")

    def _of_inner_call(self, statement: ast.stmt, call: ast.Call) -> Iterator[Edit]:
        name = _name_of(call.func)
        if name in self.effects:
            for at, argument in enumerate(call.args):
                other = [*call.args]
                if isinstance(argument, ast.Starred):
                    continue
                other[at] = ast.BinOp(argument, ast.Mult(), ast.Constant(2))
                yield self._changed("changed effect argument", statement, call, "args", other)
            if len(call.args) > 1:
                swapped = [call.args[1], call.args[0], *call.args[2:]]
                yield self._changed("changed effect argument", statement, call, "args", swapped)
            if call.keywords:
                fewer = call.keywords[:-1]
                yield self._changed("changed effect argument", statement, call, "keywords", fewer)
        function = call.func
        if isinstance(function, ast.Name) and function.id in _FUNCTIONS:
            yield self._changed(
                "other function", statement, function, "id", _FUNCTIONS[function.id]
            )
        elif _is_of(function, "ctx") and isinstance(function, ast.Attribute):
            if name in _LEVELS:
                yield self._changed("other level", statement, function, "attr", _LEVELS[name])
            elif name == "sleep":
                raw = ast.Name("trio", ast.Load())
                yield self._changed("raw sleep", statement, function, "value", raw)

    def _changed(
        self, mistake: str, statement: ast.stmt, node: ast.AST, field: str, value: object
    ) -> Edit:
        return self._edit(mistake, statement, lambda: setattr(node, field, value))


# Nodes --------------------------------------------------------------------------------------------


def _has_decorator(function: Function, name: str) -> bool:
    return any(_name_of(each) == name for each in function.decorator_list)


def _name_of(expression: ast.expr) -> str:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _is_of(expression: ast.expr, name: str) -> bool:
    return isinstance(expression, ast.Attribute) and _name_of(expression.value) == name


def _is_text(expression: ast.expr) -> bool:
    return isinstance(expression, ast.JoinedStr) or (
        isinstance(expression, ast.Constant) and isinstance(expression.value, str)
    )


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _may_swap(first: ast.stmt, second: ast.stmt) -> bool:
    fixed = (Function, ast.Return, ast.Raise, ast.Pass, ast.Break, ast.Continue)
    if isinstance(first, fixed) or isinstance(second, fixed) or _is_docstring(first):
        return False
    awaits = (ast.Await, ast.AsyncWith, ast.AsyncFor)
    return any(isinstance(node, awaits) for each in (first, second) for node in ast.walk(each))


def _passing(statement: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Pass(), statement)


def _replace(block: Block, at: int, other: ast.stmt) -> None:
    block[at] = ast.copy_location(other, block[at])


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0]
