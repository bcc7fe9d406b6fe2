"""Makes a job from a conversation and the model that answers it, and the parser of its chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Protocol, cast

import msgspec

from corosrv.base.errors import NotOffered, Refused
from corosrv.contracts.jobs import Chunk, Finish, Job, Messages, ModelCard, Sampling, ThoughtBudget, Vocabulary
from corosrv.dialects.chat import answer_grammar
from corosrv.dialects.chat.call_patterns import is_control
from corosrv.dialects.chat.choice import ChoiceParser, Syntax
from corosrv.dialects.chat.conversation import CallMode, Conversation, Tool, checked, name_of, parameters_of
from corosrv.dialects.chat.parts import AnswerText, End, Part, Reasoning, ThoughtTally
from corosrv.dialects.chat.tool_schema import element_types, string_members
from corosrv.dialects.generation.fields import schema_limits
from corosrv.formats.callformats.description import AnswerFormat, CallFormat, ElementTree, markers_for
from corosrv.formats.structured.gbnf import Rules, either, grammar, sequence


class Parser(Protocol):
    """Makes parts of one job's chunks, as early as it is certain what they are."""

    @property
    def reasoning_tokens(self) -> int:
        """Returns the number of reasoning tokens so far, of all choices."""

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[Part]:
        """Yields the parts that these chunks complete. No chunk may report a failure."""


class TextParser:
    """Parses answers that are text and nothing else."""

    reasoning_tokens = 0

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[Part]:
        for chunk in chunks:
            if chunk.text or chunk.tokens:
                yield AnswerText(chunk.index, chunk.text, chunk.tokens)
            if chunk.finish is not None:
                yield End(chunk.index, chunk.finish.value, chunk)


class SyntaxParser:
    """Parses answers that may have thoughts and calls in their text, and go on from `earlier` text."""

    def __init__(
        self, syntax: Syntax, earlier: str = "", find_vocabulary: Callable[[], Vocabulary] | None = None
    ) -> None:
        """`find_vocabulary`: returns the vocabulary of the tokens that chunks tell."""
        self._syntax = syntax
        self._earlier = earlier
        self._find_vocabulary = find_vocabulary
        self._choices: dict[int, tuple[ChoiceParser, ThoughtTally]] = {}

    @property
    def reasoning_tokens(self) -> int:
        return sum(tally.n_tokens for _, tally in self._choices.values())

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[Part]:
        for chunk in chunks:
            known = self._choices.get(chunk.index)
            choice, tally = known or self._begin_choice(chunk.index)
            parts = list(choice.push(chunk))
            tally.add(chunk, choice.thought_edges, choice.n_held)  # before the end is told, with which it is asked for
            yield from parts

    def _begin_choice(self, index: int) -> tuple[ChoiceParser, ThoughtTally]:
        choice = ChoiceParser(index, self._syntax)
        if self._earlier:
            choice.pass_over(self._earlier)
        self._choices[index] = begun = choice, ThoughtTally(self._find_vocabulary)
        return begun


class EchoParser:
    """Puts a text before each choice of an answer: the beginning of the message that it continues."""

    def __init__(self, parser: Parser, beginning: str, *, is_thought: bool = False) -> None:
        self._parser = parser
        self._beginning = beginning
        self._part = Reasoning if is_thought else AnswerText
        self._begun: set[int] = set()  # numbers of choices

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[Part]:
        for part in self._parser.parts(chunks):
            if part.choice not in self._begun:
                self._begun.add(part.choice)
                yield self._part(part.choice, self._beginning)
            yield part


class RepeatParser:
    """Gives thoughts as text as well, between their tags."""

    def __init__(self, parser: Parser, tags: tuple[str, str]) -> None:
        self._parser = parser
        self._opening, self._closing = tags
        self._thinking: set[int] = set()  # numbers of choices

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[Part]:
        for part in self._parser.parts(chunks):
            choice, was_thinking = part.choice, part.choice in self._thinking
            if isinstance(part, Reasoning):
                self._thinking.add(choice)
                yield AnswerText(choice, part.text if was_thinking else self._opening + part.text)
            elif was_thinking and not (isinstance(part, End) and part.reason == Finish.LENGTH):  # which cuts them off
                self._thinking.remove(choice)
                yield AnswerText(choice, self._closing)
            yield part


_ANY_NUMBER = 2**31 - 1  # of tokens: more than any context has


def prepare(
    conversation: Conversation,
    card: ModelCard,
    earlier: str = "",
    find_vocabulary: Callable[[], Vocabulary] | None = None,
) -> tuple[Job, Parser]:
    """Makes the job and the parser of its chunks; `earlier`: text that the answer goes on from, and does not repeat.

    `find_vocabulary`: returns the model's, by which tokens of thoughts are counted that come with others. Raises
    Refused for contradictions, and what the model cannot do.
    """
    plan = _ChatPlan.from_conversation(conversation, card)
    plan.check()
    syntax = plan.syntax
    begun_thoughts = plan.begun_thoughts if plan.prompt.continue_thoughts else ""
    earlier = begun_thoughts + earlier
    if earlier:
        plan = plan.going_on_from(earlier)
    job, prompt = conversation.job, plan.prompt
    if plan.tools != prompt.tools or plan.template_arguments != prompt.template_arguments:
        prompt = replace(prompt, tools=plan.tools, template_arguments=plan.template_arguments)
        job = replace(job, prompts=(prompt,), sampling=plan.sampling())
    elif (sampling := plan.sampling()) is not job.sampling:
        job = replace(job, sampling=sampling)
    if syntax.thought_tags is not None and find_vocabulary is not None:
        job = replace(job, tells_ids=True)
    parser: Parser = TextParser() if syntax == _PLAIN else SyntaxParser(syntax, earlier, find_vocabulary)
    if conversation.echo and begun_thoughts:
        is_thought = syntax.thought_tags is not None
        beginning = prompt.messages[-1]["reasoning_content"] if is_thought else begun_thoughts
        parser = EchoParser(parser, beginning, is_thought=is_thought)
    elif conversation.echo and prompt.continue_final and prompt.messages[-1]["content"]:
        parser = EchoParser(parser, prompt.messages[-1]["content"])
    return job, parser


def asks_to_think(template_arguments: Mapping[str, object], card: ModelCard) -> bool:
    """Returns whether a template that is given these arguments lets the model think."""
    asked = template_arguments.get("enable_thinking", template_arguments.get("thinking", card.reasons))
    return asked is not False


class _ChatPlan(msgspec.Struct, frozen=True):
    """A conversation, the model that answers it, and what follows from both."""

    conversation: Conversation
    card: ModelCard
    prompt: Messages
    tools: tuple[Tool, ...]  # that may be called
    form: CallFormat
    is_forced: bool  # the answer is a call
    thought_tokens: int | None  # that thoughts may have: the request's word goes before the server's
    template_arguments: dict[str, object]  # those of the prompt, and what the request says of thoughts
    is_asked_to_think: bool  # as much as a budget allows

    @classmethod
    def from_conversation(cls, conversation: Conversation, card: ModelCard) -> _ChatPlan:
        prompt, choice = cast(Messages, conversation.job.prompts[0]), conversation.tool_choice.choice
        tools = checked(prompt.tools, conversation.places) if prompt.tools else ()
        tokens = card.thought_tokens if conversation.thought_tokens is None else conversation.thought_tokens
        arguments, thinks = prompt.template_arguments, conversation.thinks
        if thinks:
            arguments = {"enable_thinking": True, "thinking": True, **arguments}  # some templates know the second alone
        elif thinks is False or (tokens == 0 and "enable_thinking" not in arguments):
            arguments = {"enable_thinking": False, **arguments}
        return cls(
            conversation, card, prompt, () if choice is CallMode.NONE else tools, card.call_format,
            choice is CallMode.REQUIRED, tokens, arguments, asks_to_think(arguments, card),
        )  # fmt: skip

    @property
    def syntax(self) -> Syntax:
        syntax = _syntax_of_text(self.card.answer_format, self.card.splits_reasoning, self.may_think)
        if not self.tools:
            return syntax
        return msgspec.structs.replace(
            syntax,
            tool_format=self.form,
            markers=self.markers,
            only_calls=self.is_forced,
            element_types=self.element_types,
            string_members=string_members((name_of(tool), parameters_of(tool)) for tool in self.tools),
        )

    def going_on_from(self, text: str) -> _ChatPlan:
        """Returns the plan of what follows a text that the answer has begun with: thoughts may be open, or over.

        Raises Refused for a text with a call in it.
        """
        # Also where the answer shows thoughts in its text.
        tags = self.card.reasoning_tags if self.may_think else None
        begins_in_thoughts = tags is not None and self.card.opens_reasoning
        syntax = msgspec.structs.replace(self.syntax, thought_tags=tags, begins_in_thoughts=begins_in_thoughts)
        choice = ChoiceParser(0, syntax)
        choice.pass_over(text)
        if choice.has_calls:
            is_begun = self.prompt.continue_thoughts and text == self.begun_thoughts
            param = self.prompt.param if is_begun else "fork.at"
            words = "a call has begun in what the answer goes on from: keep less of it, or send no tools"
            raise Refused(f"{param}: {words}", param)
        if choice.is_thinking:
            answer = replace(self.card.answer_format, opens_thoughts=True)
            return msgspec.structs.replace(self, card=replace(self.card, answer_format=answer))
        if text.strip():
            prompt = replace(self.prompt, add_generation_prompt=False)  # nothing is thought any more
            return msgspec.structs.replace(self, prompt=prompt)
        return self

    @property
    def may_think(self) -> bool:
        prompt, answer = self.prompt, self.card.answer_format
        if answer.thought_tags is None or not (prompt.add_generation_prompt or prompt.continue_thoughts):
            return False
        return self.is_asked_to_think or not answer.can_be_silenced

    @property
    def begun_thoughts(self) -> str:
        """Returns the thoughts that the answer continues, behind the tag that opens them unless the prompt does."""
        opening = "" if self.card.opens_reasoning or self.card.reasoning_tags is None else self.card.reasoning_tags[0]
        return opening + str(self.prompt.messages[-1]["reasoning_content"])

    @property
    def thoughts(self) -> ThoughtBudget | None:
        """Returns what keeps thoughts short, or keeps those away that no prompt can."""
        tokens = self.thought_tokens if self.is_asked_to_think else 0
        if tokens is None and self.conversation.may_end_thoughts:
            tokens = _ANY_NUMBER
        return None if tokens is None else self._thoughts_of(tokens)

    @property
    def watched_thoughts(self) -> ThoughtBudget | None:
        """Returns what keeps marks of calls that thoughts quote from beginning a grammar.

        Marks that are control tokens are not quoted: they begin calls in thoughts too; see ThoughtCalls.
        """
        return None if any(map(is_control, self.markers)) else self._thoughts_of(_ANY_NUMBER)

    def _thoughts_of(self, tokens: int) -> ThoughtBudget | None:
        """Returns the budget of thoughts that may have so many tokens; None where there are none."""
        tags, answer = self.card.reasoning_tags, self.card.answer_format
        if tags is None or not self.may_think:
            return None
        # Where calls may follow, the model says what comes; else it is text.
        rest = answer.turn if self.tools else answer.turn + answer.text_opening
        opening = "" if self.card.opens_reasoning else tags[0]
        message = self.conversation.thought_message
        if message is None:
            message = self.card.thought_message
        return ThoughtBudget(tokens, tags[1], opening, message, rest)

    @property
    def markers(self) -> tuple[str, ...]:
        """Returns the texts that a call begins with."""
        return markers_for(self.form, map(name_of, self.tools)) if self.tools else ()

    @property
    def element_types(self) -> dict[str, dict[str, str]]:
        """Returns the types of members by tools, where elements do not tell them."""
        tree = self.form.arguments
        if not isinstance(tree, ElementTree):
            return {}
        return {name_of(tool): element_types(parameters_of(tool), tree.item) for tool in self.tools}

    def check(self) -> None:
        """Raises Refused for contradictions."""
        conversation = self.conversation
        name = conversation.tool_choice.name
        if self.is_forced and not self.tools:
            raise Refused("tool_choice asks for a call, and there are no tools", "tool_choice")
        if name is not None and name not in map(name_of, self.tools):
            raise Refused(f"tool_choice: there is no tool of the name '{name[:64]}'", "tool_choice")
        if self.tools and "tools" not in self.card.capabilities:
            raise NotOffered("this model has no chat template, and so cannot call tools")
        form = conversation.answer_format.param if conversation.answer_format else None
        if self.tools:
            form = "tool_choice" if self.is_forced else "tools"
        if form and conversation.job.sampling.has_own_grammar:
            raise Refused(f"grammar and {form} contradict each other: send one of them", "grammar")
        if self.prompt.continue_thoughts:
            self._check_thoughts()
        is_begun = self.prompt.continue_final and not self.prompt.continue_thoughts
        if is_begun and (self.is_forced or conversation.answer_format):
            raise Refused(f"{form}: an answer that is begun already cannot be forced into a form", form)

    def _check_thoughts(self) -> None:
        """Raises Refused where the thoughts of the last message cannot go on."""
        param, tags = self.prompt.param, self.card.reasoning_tags
        if tags is None or not self.may_think:
            raise Refused(f"{param}: the last message has thoughts alone, and the model does not think", param)
        if tags[1] in self.prompt.messages[-1]["reasoning_content"]:
            raise Refused(f"{param}: the thoughts of the last message have ended ({tags[1]}): send its text", param)

    def sampling(self) -> Sampling:
        """Returns the job's sampling, with the grammar that the answer needs."""
        sampling = self.conversation.job.sampling
        if (budget := self.thoughts) is not None:
            sampling = replace(sampling, thoughts=budget)
        if not self.tools and self.conversation.answer_format is None:
            # Thoughts may quote what the request's own grammar begins with.
            budget = self._thoughts_of(_ANY_NUMBER) if sampling.grammar_triggers and not sampling.thoughts else None
            return sampling if budget is None else replace(sampling, thoughts=budget)
        answers = list(self._answers())
        may_be_text = bool(self.tools) and not self.is_forced and self.conversation.answer_format is None
        if may_be_text and not self.form.is_alone:
            # Text and thoughts are free, up to the marker of a call.
            text = self._checked(grammar(answers[0].start, *answers))
            return replace(
                sampling, grammar=text, grammar_param=self._schema_param, grammar_triggers=self.markers,
                thoughts=sampling.thoughts or self.watched_thoughts,
            )  # fmt: skip
        if may_be_text:
            answers.append(answer_grammar.free_rules(self.markers[0][0]))
        thoughts = [*self._thoughts(), *self._edges()]
        root = sequence(*(rules.start for rules in thoughts), either(rules.start for rules in answers))
        text = self._checked(grammar(root, *thoughts, *answers))
        return replace(sampling, grammar=text, grammar_param=self._schema_param)

    @property
    def _schema_param(self) -> str:
        """Returns the field whose schemas the grammar is made from, for errors."""
        answer_format = self.conversation.answer_format
        return "tools" if self.tools or answer_format is None else answer_format.param

    def _answers(self) -> Iterator[Rules]:
        """Yields the rules of each form that an answer may have."""
        conversation, limits = self.conversation, schema_limits(self.card)
        if self.tools:
            name = conversation.tool_choice.name
            callable_tools = [(number, tool) for number, tool in enumerate(self.tools) if name in (None, name_of(tool))]
            is_parallel = conversation.parallel_calls and name is None
            yield answer_grammar.call_rules(callable_tools, self.form, is_parallel, conversation.places.schema, limits)
        if conversation.answer_format is not None and not self.is_forced:
            yield answer_grammar.format_rules(conversation.answer_format, limits)

    def _thoughts(self) -> list[Rules]:
        if not self.may_think or self.card.reasoning_tags is None:
            return []
        return [answer_grammar.thought_rules(self.card.reasoning_tags, self.card.opens_reasoning)]

    def _edges(self) -> list[Rules]:
        """Returns the rules of what may stand between thoughts and the form that an answer has to have."""
        answer = self.card.answer_format
        return answer_grammar.edge_rules(answer.turn, "" if self.is_forced else answer.text_opening)

    def _checked(self, text: str) -> str:
        """Returns a grammar that the engine compiles. Raises Refused for schemas that are too large together."""
        if len(text.encode()) > self.card.grammar_bytes:
            param = self._schema_param
            raise Refused(f"{param}: the schemas together are too large: ask for fewer or simpler values", param)
        return text


# All answers of a model have one of a few: each is made once.
@lru_cache(maxsize=64)
def _syntax_of_text(answer: AnswerFormat, splits_thoughts: bool, may_think: bool) -> Syntax:
    """Returns the syntax of an answer that cannot call tools. `splits_thoughts`: they are no part of its text."""
    edges = answer.edges
    if not splits_thoughts:  # the tags of thoughts stay in the text with them
        edges = tuple(edge for edge in edges if edge not in (answer.thought_tags or ()))
    has_thoughts = splits_thoughts and may_think
    return Syntax(
        thought_tags=answer.thought_tags if has_thoughts else None,
        begins_in_thoughts=has_thoughts and answer.opens_thoughts,
        edges=edges,
    )


_PLAIN = Syntax()
