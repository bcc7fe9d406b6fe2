"""Compiles chat templates so that their loops, literals and output pass through the hands of their sandbox.

Its methods are reached by attributes of the environment: a name could be taken by the template.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer


class Generation(Extension):
    """`{% generation %}`, which marks for training what the assistant says: nothing but its body here."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class OutputCounting(CodeGenerator):
    """Puts the template's own text through the sandbox's hands, as Jinja does with values by itself."""

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.printed({super()._output_const_repr(group)})"


class StepCounting(NodeTransformer):
    """Puts loops, `~` and literals through the sandbox's hands. By attributes of the environment: a name could be
    taken by the template."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _call("count_items", node.iter, node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("joined", nodes.List(node.nodes, lineno=node.lineno), node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _call("count_made", node, node.lineno) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        self.generic_visit(node)
        return _call("built", node, node.lineno)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _call("built", node, node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return _call("built", node, node.lineno) if node.ctx == "load" else node


def _call(name: str, argument: nodes.Node, lineno: int) -> nodes.Call:
    assert isinstance(argument, nodes.Expr)
    return nodes.Call(nodes.EnvironmentAttribute(name), [argument], [], None, None, lineno=lineno)
