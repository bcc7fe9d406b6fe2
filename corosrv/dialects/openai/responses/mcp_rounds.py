"""The rounds of responses whose model calls tools of MCP servers: several answers of the model, and calls between them.

`McpRun` goes from one round to the next, and `answer` gives a client what it asks for. The run never waits by itself:
it says what it waits for, and whoever reads its events waits with a time limit, so that a stream has its pings, and a
client that leaves ends the job or the call at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

from flask import Response, request

from corosrv.base.errors import ClientGone, CorosrvError, InvalidSchema, JobFailed, ReadTimeout
from corosrv.contracts.jobs import Chunk, Job, Reader
from corosrv.contracts.jobs.reader import Sink
from corosrv.contracts.jobs.terms import Terms
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, arguments
from corosrv.dialects.chat.prepare import Parser
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.exchange import FailureOf, RequestFlow, failure_of, failures_in_group, until_failure
from corosrv.dialects.generation.job_usage import submit
from corosrv.dialects.openai.responses.mcp_answers import McpAnswer, McpWork, text_of
from corosrv.dialects.openai.responses.mcp_client import McpAsk, McpFault, McpLoop, McpSession
from corosrv.dialects.openai.responses.mcp_items import (
    ApprovedCall,
    BoundTool,
    McpOutcome,
    McpToolbox,
    bind,
    check_list,
    functions,
    server_failed,
)
from corosrv.web.groups import GroupMember, join_group
from corosrv.web.http import sse
from corosrv.web.http.client import ClientWatch
from corosrv.web.http.lean_flask import current
from corosrv.web.http.reply import json_response
from corosrv.web.http.terms import request_terms

MAX_ROUNDS = 16  # in which the model may call; then it has to answer
_HEAD_S = 1.0  # for which a stream that has not started keeps its status back


Wait = Callable[[float | None], Any]  # returns what came; raises ReadTimeout after so many seconds
Steps = Generator["bytes | Wait", Any, Any]


class McpRun(Reader[bytes]):
    """The rounds of one response, as a reader of its events. Belongs to the thread that made it."""

    def __init__(
        self, flow: RequestFlow, loop: McpLoop, call: Call, answer: McpAnswer, terms: Terms, find_failure: FailureOf
    ) -> None:
        """`loop`: speaks to the servers."""
        self._flow = flow
        self._loop = loop
        self._answer = answer
        self._plan = answer.plan
        self._terms = terms
        self._is_stream = call.stream
        self._find_failure = find_failure
        self._sessions: dict[str, McpSession] = {}
        self._at_hand: Reader[Chunk] | McpAsk | None = None
        self._is_cancelled = False
        self._is_finished = False
        self._n_calls = 0
        self._steps: Steps = self._run()
        self._wait: Wait | None = None

    @property
    def is_finished(self) -> bool:
        return self._is_finished

    def take(self, timeout: float | None = None) -> list[bytes]:
        while not self._is_finished:
            try:
                step = self._step(timeout)
            except ReadTimeout:
                raise
            except BaseException:
                self.close()
                raise
            if step:
                return [step]
        return []

    def _step(self, timeout: float | None) -> bytes:
        wait, step = self._wait, None
        if wait is None:
            step = next(self._steps)
        else:
            try:
                value = wait(timeout)
            except ReadTimeout:
                raise
            except BaseException as error:
                step = self._steps.throw(error)
            else:
                step = self._steps.send(value)
        self._wait = None if isinstance(step, bytes) else step
        return step if isinstance(step, bytes) else b""

    def pump(self, sink: Sink[bytes], timeout: float | None = None) -> None:
        while not self._is_finished:
            if not sink(self.take(timeout)):
                return

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._at_hand is not None:
            self._at_hand.cancel()

    def close(self) -> None:
        self._is_finished = True
        self._steps.close()

    def _run(self) -> Steps:
        try:
            for toolbox in self._plan.toolboxes:
                yield from self._list(toolbox)
            self._bind()
            for approved in self._plan.approved:
                yield from self._call_approved(approved)
            n_rounds = 0
            while (yield from self._round(n_rounds)):
                n_rounds += 1
            events = self._answer.finish()
            self._is_finished = True
            yield events
        finally:
            for session in self._sessions.values():
                session.close()

    def _list(self, toolbox: McpToolbox) -> Steps:
        if toolbox.label in self._plan.known:
            return
        block, events = self._answer.begin(McpWork("mcp_list_tools", toolbox.label))
        yield events
        try:
            listed = yield from self._ask(toolbox, lambda session: session.list_tools())
        except McpFault as fault:
            yield self._answer.settle(block, McpOutcome("", fault.members))
            raise server_failed(toolbox, str(fault)) from None
        check_list(toolbox, listed)
        yield self._answer.settle(block, McpOutcome(""), toolbox.allowed(listed))

    def _bind(self) -> None:
        answer = self._answer
        listed = {work.label: work.tools for work in answer.work.values()} | dict(self._plan.known)
        taken = [function["function"]["name"] for function in self._plan.functions]
        answer.tools = bind([(toolbox, listed[toolbox.label]) for toolbox in self._plan.toolboxes], taken)

    def _round(self, number: int) -> Generator[bytes | Wait, Any, bool]:
        """Generates one answer and makes the calls in it; returns whether the model has to be asked again."""
        answer = self._answer
        left = None if self._plan.max_tokens is None else self._plan.max_tokens - answer.tally.completion_tokens
        if left is not None and left <= 0:
            answer.cut()
            return False
        job, parser = self._translate(number)
        if left is not None:
            job = replace(job, max_tokens=left)
        answer.begin_round(parser)
        yield from self._generate(job)
        if answer.is_cut:
            yield answer.give_up()
            return False
        is_open = not answer.round_calls
        for block in answer.round_calls:
            work = answer.work.get(block.number)
            if work is None or work.type != "mcp_call":
                is_open = True  # what the client has to say comes first
                continue
            tool = answer.tools[block.name]
            outcome = yield from self._call(tool.toolbox, tool.listed.name, block.text)
            yield answer.settle(block, outcome)
        return not is_open

    def _translate(self, number: int) -> tuple[Job, Parser]:
        """Makes the job of a round. Raises Refused, and McpServerFailed for a tool that no grammar can hold."""
        plan, answer = self._plan, self._answer
        offered: Mapping[str, BoundTool] = answer.tools
        if number == MAX_ROUNDS or (plan.max_calls is not None and self._n_calls >= plan.max_calls):
            offered = {}
        policy = plan.policy if number == 0 else CallPolicy()
        own = plan.functions
        if number == 0 and plan.server is not None:  # a tool of this server, by the server's own name for it
            offered = {name: tool for name, tool in offered.items() if tool.toolbox.label == plan.server}
            own = ()
            if policy.name is not None:
                named = {tool.listed.name: name for name, tool in offered.items()}
                policy = CallPolicy(policy.choice, named.get(policy.name, policy.name))
        if plan.policy.choice is CallMode.NONE:
            policy = plan.policy
        try:
            return plan.translate(answer.turns, (*own, *functions(offered)), policy)
        except InvalidSchema as error:
            number = _number_in(error.param) - len(own)
            if not 0 <= number < len(offered):
                raise
            tool = list(offered.values())[number]
            words = f"the schema of '{tool.listed.name[:64]}' is not supported; leave it out by allowed_tools"
            raise server_failed(tool.toolbox, words) from None

    def _generate(self, job: Job) -> Steps:
        job = replace(job, stream=self._is_stream, terms=self._terms)
        reader, record = submit(self._flow.worker, job, self._flow.logs_json)
        self._at_hand = reader
        if self._is_cancelled:
            reader.cancel()
        try:
            while not reader.is_finished:
                chunks: list[Chunk] = yield reader.take
                record.add(chunks)
                answered, failure = until_failure(chunks, self._find_failure)
                if answered:
                    yield self._answer.events(answered)
                if failure is not None:
                    raise failure
        finally:
            self._at_hand = None
            reader.close()
            record.end()

    def _call_approved(self, approved: ApprovedCall) -> Steps:
        work = McpWork("mcp_call", approved.toolbox.label, approved.name, approved.id)
        block, events = self._answer.begin(work, approved.arguments)
        yield events
        outcome = yield from self._call(approved.toolbox, approved.name, approved.arguments)
        approved.turn["content"] = text_of(outcome)
        yield self._answer.settle(block, outcome)

    def _call(self, toolbox: McpToolbox, name: str, text: str) -> Generator[bytes | Wait, Any, McpOutcome]:
        """Makes one call; whatever becomes of it is an outcome."""
        values, self._n_calls = arguments(text, "arguments"), self._n_calls + 1
        try:
            if self._plan.max_calls is not None and self._n_calls > self._plan.max_calls:
                raise McpFault("no more calls are allowed (max_tool_calls)")
            if not any(tool.toolbox is toolbox and tool.listed.name == name for tool in self._answer.tools.values()):
                raise McpFault("the MCP server has no such tool, or the request does not allow it", -32602)
            if isinstance(values, str):
                raise McpFault("the arguments are no JSON object", -32602)
            outcome: McpOutcome = yield from self._ask(toolbox, lambda session: session.call(name, values))
        except McpFault as fault:
            return McpOutcome("", fault.members)
        return outcome

    def _ask(self, toolbox: McpToolbox, begin: Callable[[McpSession], McpAsk]) -> Generator[bytes | Wait, Any, Any]:
        """Asks a server, and returns what it says. Raises McpFault, and JobFailed where the response was cancelled."""
        session = self._sessions.get(toolbox.label)
        if session is None or session.is_over:
            session = McpSession(self._loop, toolbox.url, toolbox.headers, self._plan.timeout_s)
            self._sessions[toolbox.label] = session
        ask = self._at_hand = begin(session)
        try:
            if not self._is_cancelled:
                return (yield ask.wait)
        except McpFault:
            if not self._is_cancelled:
                raise
        finally:
            self._at_hand = None
            ask.close()
        raise JobFailed("the request was cancelled")


def _number_in(param: str | None) -> int:
    """Returns the number of a tool in the path of its schema; -1 where there is none."""
    digits = (param or "").partition("[")[2].partition("]")[0]
    return int(digits) if digits.isdigit() else -1


class _Events(sse.Encoder[bytes]):
    """Passes the events of a run on to its stream."""

    def __init__(self, answer: McpAnswer, member: GroupMember | None) -> None:
        self._answer = answer
        self._member = member

    def encode(self, items: list[bytes]) -> bytes:
        return b"".join(items)

    def encode_error(self, error: CorosrvError) -> bytes:
        return self._answer.failure(error)

    def close(self) -> None:
        if self._member is not None:
            self._member.leave()


def answer(flow: RequestFlow, loop: McpLoop, call: Call) -> Response:
    """Runs the rounds of a call whose answer is an McpAnswer, and answers as it asks: see RequestFlow.answer.

    `loop`: of the process, which speaks to the servers.
    """
    mcp_answer = call.answer
    assert isinstance(mcp_answer, McpAnswer)
    member = join_group(flow.groups)
    find_failure = failure_of if member is None else failures_in_group(member)
    try:
        run = McpRun(flow, loop, call, mcp_answer, request_terms(call.priority), find_failure)
        if member is not None:
            member.bind(run.cancel)
        if call.stream:
            return _stream(flow, mcp_answer, run, member)
        _finish(run)
    except BaseException:
        if member is not None:
            member.leave()
        raise
    if member is not None:
        member.leave()
    return json_response(mcp_answer.response)


def _finish(run: McpRun) -> None:
    """Reads a run to its end. Waits; raises ClientGone where the client leaves."""
    watch = ClientWatch(current(request).environ, run.cancel)
    try:
        with run:
            while not run.is_finished:
                run.take()
    except CorosrvError:
        if watch.is_gone:
            raise ClientGone("the client left before its answer was ready") from None
        raise
    finally:
        watch.close()


def _stream(flow: RequestFlow, mcp_answer: McpAnswer, run: McpRun, member: GroupMember | None) -> Response:
    stream = sse.EventStream(request.environ, run, mcp_answer.first(), _Events(mcp_answer, member), flow.streams)
    stream.wait_for_start(_HEAD_S, lambda pieces: None)
    return sse.response(stream)
