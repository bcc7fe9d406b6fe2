"""Responses whose model calls tools of MCP servers, the way out: what the servers do becomes items and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.contracts.jobs import Job
from corosrv.dialects.chat.answer import AnswerBlock, BlockKind
from corosrv.dialects.chat.conversation import CallPolicy, Turn, TurnList, arguments
from corosrv.dialects.chat.prepare import Parser
from corosrv.dialects.generation.call import Telemetry
from corosrv.dialects.openai.responses.answer_types import ItemStatus, ItemType, ResponseItem, ResponseObject
from corosrv.dialects.openai.responses.answers import ResponseAnswer
from corosrv.dialects.openai.responses.mcp_items import PREFIXES, ApprovedCall, BoundTool, McpOutcome, McpToolbox
from corosrv.dialects.openai.responses.schema import McpListedTool
from corosrv.dialects.openai.responses.store import item_id


@dataclass(frozen=True, slots=True)
class McpPlan:
    """A request with tools of MCP servers, checked; `translate` makes the job of one round."""

    translate: Callable[[tuple[Turn, ...], tuple[dict[str, Any], ...], CallPolicy], tuple[Job, Parser]]
    turns: tuple[Turn, ...]
    functions: tuple[dict[str, Any], ...]  # the client's own
    toolboxes: tuple[McpToolbox, ...]
    policy: CallPolicy
    server: str | None  # whose tool the model has to call, where `policy` has it call one
    known: Mapping[str, Sequence[McpListedTool]]  # tools by label that were listed before
    approved: Sequence[ApprovedCall]
    max_calls: int | None
    max_tokens: int | None  # that the model may generate in all rounds together
    timeout_s: float  # of each list and each call


@dataclass(slots=True)
class McpWork:
    """A list or a call that an item shows."""

    type: ItemType  # of the item: a list, a call, or a request for a call to be approved
    label: str
    name: str = ""
    approval_id: str | None = None
    tools: Sequence[McpListedTool] = ()
    outcome: McpOutcome | None = None


class McpAnswer(ResponseAnswer):
    """A response of several rounds being put together. `work` has what MCP servers do, by the number of its block."""

    def __init__(self, plan: McpPlan, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.plan = plan
        self.tools: Mapping[str, BoundTool] = {}  # by the names under which the model calls them
        self.work: dict[int, McpWork] = {}
        self.response: ResponseObject | None = None  # at the end
        self._starts = [0]  # of the rounds, in the row of blocks
        self._earlier_reasoning = 0

    def begin_round(self, parser: Parser) -> None:
        self._earlier_reasoning += self._parser.reasoning_tokens
        self._parser = parser
        self._telemetry = Telemetry(1, self._options)
        self._starts.append(len(self.blocks.row))
        self.blocks.end = None

    @property
    def reasoning_tokens(self) -> int:
        return self._earlier_reasoning + self._parser.reasoning_tokens

    @property
    def round_calls(self) -> list[AnswerBlock]:
        """Returns the calls that the model made last."""
        return [block for block in self.blocks.row[self._starts[-1] :] if block.kind is BlockKind.CALL]

    @property
    def is_cut(self) -> bool:
        return self._is_cut

    def cut(self) -> None:
        """Ends the answer where the model may generate no more."""
        assert self.blocks.end is not None, "a round has ended"
        self.blocks.end = msgspec.structs.replace(self.blocks.end, reason="length")

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Returns the conversation so far."""
        return self.plan.turns + self._answer_turns()

    def begin(self, work: McpWork, arguments: str = "") -> tuple[AnswerBlock, bytes]:
        """Adds work that the model did not ask for just now; returns its block and its first events."""
        block = AnswerBlock(len(self.blocks.row), BlockKind.CALL, pieces=[arguments])
        self.blocks.row.append(block)
        self.work[block.number] = work
        events = self._begin_events(block, work)
        if work.type == "mcp_call":
            events += self._send("response.mcp_call_arguments.done", **self._place(block), arguments=arguments)
        return block, events

    def settle(self, block: AnswerBlock, outcome: McpOutcome, tools: Sequence[McpListedTool] = ()) -> bytes:
        """Ends work; returns its last events."""
        work = self.work[block.number]
        work.outcome, work.tools = outcome, tools
        end = "completed" if outcome.error is None else "failed"
        return self._send(f"response.{work.type}.{end}", **self._place(block)) + self._done(block)

    def finish(self) -> bytes:
        """Returns the events after the last round."""
        return super().answer_end()

    def answer_end(self) -> bytes:
        return b""  # of one round

    def complete_answer(self) -> ResponseObject:
        self.response = super().complete_answer()
        return self.response

    def block_start(self, block: AnswerBlock) -> bytes:
        tool = self.tools.get(block.name) if block.kind is BlockKind.CALL else None
        if tool is None:
            return super().block_start(block)
        type: ItemType = "mcp_approval_request" if tool.needs_approval else "mcp_call"
        work = self.work[block.number] = McpWork(type, tool.toolbox.label, tool.listed.name)
        return self._begin_events(block, work)

    def block_delta(self, block: AnswerBlock, piece: str) -> bytes:
        work = self.work.get(block.number)
        if work is None:
            return super().block_delta(block, piece)
        if work.type == "mcp_approval_request":
            return b""
        return self._send("response.mcp_call_arguments.delta", **self._place(block), **self._timings, delta=piece)

    def block_end(self, block: AnswerBlock) -> bytes:
        work = self.work.get(block.number)
        if work is None:
            return super().block_end(block)
        if work.type == "mcp_approval_request":
            return self._done(block)
        return self._send("response.mcp_call_arguments.done", **self._place(block), arguments=block.text)

    def give_up(self) -> bytes:
        """Ends the calls of a round that was cut off, none of which was made."""
        made = [(block, self.work.get(block.number)) for block in self.round_calls]
        return b"".join(self._done(block) for block, work in made if work is not None and work.type == "mcp_call")

    def _begin_events(self, block: AnswerBlock, work: McpWork) -> bytes:
        item = self._item(block, "in_progress")
        events = self._send("response.output_item.added", output_index=block.number, item=item)
        if work.type == "mcp_approval_request":
            return events
        return events + self._send(f"response.{work.type}.in_progress", **self._place(block))

    def _done(self, block: AnswerBlock) -> bytes:
        item = self._item(block, self._status(block))
        return self._send("response.output_item.done", output_index=block.number, item=item)

    def _id(self, block: AnswerBlock) -> str:
        work = self.work.get(block.number)
        return super()._id(block) if work is None else item_id(PREFIXES[work.type], self._key, block.number)

    def _item(self, block: AnswerBlock, status: ItemStatus, has_part: bool = True) -> ResponseItem:
        work = self.work.get(block.number)
        if work is None:
            return super()._item(block, status, has_part)
        item = ResponseItem(self._id(block), work.type, server_label=work.label)
        error = None if work.outcome is None else work.outcome.error
        if work.type == "mcp_list_tools":
            item.tools = list(work.tools)
            item.error = None if error is None else error["message"]
            return item
        item.name, item.arguments = work.name, block.text
        if work.type == "mcp_approval_request" and status == "incomplete":
            item.status = status
        if work.type == "mcp_call":
            item.status = self._call_status(work)
            item.output = work.outcome.text if work.outcome is not None and error is None else None
            item.error, item.approval_request_id = error, work.approval_id
        return item

    def _call_status(self, work: McpWork) -> ItemStatus:
        if work.outcome is None:
            return "incomplete" if self._is_cut else "in_progress"
        return "completed" if work.outcome.error is None else "failed"

    def _answer_turns(self) -> tuple[Turn, ...]:
        turns, results = TurnList(), list[tuple[str, str]]()

        def end_round() -> None:
            for id, text in results:
                turns.result(id, text, "output")
            results.clear()
            turns.close()

        for block in self.blocks.row:
            if block.number in self._starts:
                end_round()
            work = self.work.get(block.number)
            if block.kind is BlockKind.REASONING:
                turns.think(block.text)
            elif block.kind is BlockKind.TEXT:
                turns.answer(block.text)
            elif work is None:
                turns.call(block.id, block.name, arguments(block.text, "arguments"))
            elif work.type != "mcp_list_tools" and work.approval_id is None:
                # What was approved has its turns in the input.
                turns.call(self._id(block), block.name, arguments(block.text, "arguments"))
                if work.outcome is not None:
                    results.append((self._id(block), text_of(work.outcome)))
        end_round()
        return turns.all


def text_of(outcome: McpOutcome) -> str:
    """Returns what the model is told of a call."""
    return outcome.text if outcome.error is None or outcome.text else str(outcome.error["message"])
