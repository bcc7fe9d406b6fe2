"""Makes the messages and services of a protocol from tables of their names, without generated modules.

A table has the name of each message with its fields, as text: `string name, int64* shape`. They are numbered from 1 on,
or from where `name=4` says; `*` marks repeated ones, `name@choice` one of a oneof, and the kind `map` stands for
`map<string, InferParameter> parameters`. A dotted name is a message within another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


@dataclass(frozen=True)
class Schema:
    """Describes one file of a protocol.

    `enums`: their values, from 0 on. `services`: their methods, each with its request and its answer, of which `*`
    marks those that are streams.
    """

    file: str
    package: str
    messages: Mapping[str, str]
    enums: Mapping[str, str] = field(default_factory=dict)
    services: Mapping[str, str] = field(default_factory=dict)

    def descriptor(self) -> Any:
        """Returns the file's descriptor."""
        return _FileMaker(self).make()


class SchemaPool:
    """Owns the messages of some schemas, apart from protobuf's common pool, where others may claim the same names."""

    def __init__(self, schemas: Iterable[Schema]) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        self._files = {schema.file: schema.descriptor() for schema in schemas}
        for file in self._files.values():
            self._pool.AddSerializedFile(file.SerializeToString())

    def message(self, name: str) -> Any:
        """Returns the class of a message, by its full name."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))

    def service_names(self) -> list[str]:
        return [f"{file.package}.{service.name}" for file in self._files.values() for service in file.service]

    def file_named(self, name: str) -> Any:
        """Returns the descriptor of a file; None if there is none of this name."""
        return self._files.get(name)

    def file_with(self, symbol: str) -> Any:
        """Returns the descriptor of the file with this full name of a message, a service or a member of theirs."""
        try:
            return self._files[self._pool.FindFileContainingSymbol(symbol).name]
        except KeyError:
            return None


class _FileMaker:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._file = descriptor_pb2.FileDescriptorProto(name=schema.file, package=schema.package, syntax="proto3")
        self._by_name: dict[str, Any] = {}

    def make(self) -> Any:
        schema = self._schema
        for name in sorted(schema.messages, key=lambda name: name.count(".")):
            outer, _, inner = name.rpartition(".")
            siblings = self._by_name[outer].nested_type if outer else self._file.message_type
            self._by_name[name] = siblings.add(name=inner)
            self._add_fields(name, schema.messages[name])
        for name, values in schema.enums.items():
            outer, _, inner = name.rpartition(".")
            enum = (self._by_name[outer] if outer else self._file).enum_type.add(name=inner)
            for number, value in enumerate(values.split(", ")):
                enum.value.add(name=value, number=number)
        for name, methods in schema.services.items():
            self._add_service(name, methods)
        return self._file

    def _add_fields(self, name: str, fields: str) -> None:
        message, number = self._by_name[name], 0
        for text in filter(None, fields.split(", ")):
            number += 1
            if text == "map parameters":
                self._add_parameters(message, f".{self._schema.package}.{name}", number)
                continue
            kind, rest = text.split(" ")
            rest, _, choice = rest.partition("@")
            field_name, _, explicit = rest.partition("=")
            number = int(explicit or number)
            self._add_field(message, kind, field_name, number)
            if choice:
                message.field[-1].oneof_index = _oneof(message, choice)

    def _add_field(self, message: Any, kind: str, name: str, number: int) -> None:
        label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
        kind = kind.removesuffix("*")
        field = message.field.add(name=name, number=number, label=label)
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = _Field.TYPE_ENUM if kind in self._schema.enums else _Field.TYPE_MESSAGE
            field.type_name = self._full(kind)

    def _add_parameters(self, message: Any, path: str, number: int) -> None:
        """Adds `map<string, InferParameter> parameters`, which is a repeated message of key and value."""
        entry = message.nested_type.add(name="ParametersEntry")
        entry.options.map_entry = True
        self._add_field(entry, "string", "key", 1)
        self._add_field(entry, "InferParameter", "value", 2)
        self._add_field(message, "ParametersEntry*", "parameters", number)
        message.field[-1].type_name = f"{path}.ParametersEntry"

    def _add_service(self, name: str, methods: str) -> None:
        service = self._file.service.add(name=name)
        for text in methods.split(", "):
            method, request, answer = text.split(" ")
            service.method.add(
                name=method,
                input_type=self._full(request.removesuffix("*")),
                output_type=self._full(answer.removesuffix("*")),
                client_streaming=request.endswith("*"),
                server_streaming=answer.endswith("*"),
            )

    def _full(self, name: str) -> str:
        return f".{self._schema.package}.{name}"


def _oneof(message: Any, name: str) -> int:
    """Returns the index of a message's oneof, which is added where it is not there."""
    names = [choice.name for choice in message.oneof_decl]
    if name not in names:
        message.oneof_decl.add(name=name)
        return len(names)
    return names.index(name)
