"""The endpoints of files and batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec
from flask import Blueprint, Request, Response, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from corosrv.base.errors import NotOffered, NotSupported, Refused, Unavailable, UnsupportedMedia
from corosrv.base.processor import Turns
from corosrv.base.waits import call_in_thread
from corosrv.dialects.openai import events
from corosrv.dialects.openai.batches import answer_types
from corosrv.formats.bodies import convert
from corosrv.web.http import body_reader
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.openapi import READS, operation
from corosrv.web.http.reply import json_response, long_json_response, register_errors

if TYPE_CHECKING:  # most servers need none of it
    from corosrv.dialects.openai.batches.folder import FileFolder, OwnerFolder, Upload

_FILE = {"id": "a file's id"}
_BATCH = {"id": "a batch's id"}
_OFF = " Needs a folder for files (`COROSRV_FILES_PATH`)."
_PIECE = 256 << 10  # bytes of a file that are read or written at once
_FORM_MARGIN = 65_536  # bytes of a form beside its file
_HELD = 65_536  # bytes of a part's head: reading a long one takes its time
_FED = 16_384  # bytes of a form that are read at once
_MOST_PARTS = 16
_UNIT_S = {"m": 60, "h": 3600, "d": 86_400}
_MOST_WINDOW_S = 30 * 86_400

P = ParamSpec("P")
T = TypeVar("T")

_batch_body = msgspec.json.Decoder(answer_types.BatchBody)


def blueprint(
    folder: FileFolder | None,
    bodies: BodyReader,
    max_body_bytes: int,
    file_bytes: int,
    wake: Callable[[], None] = lambda: None,
) -> Blueprint:
    """Files and batches. `folder`: None where none is set; `wake`: tells whoever runs batches of a new one."""
    routes = Blueprint("batches", __name__)

    def own() -> OwnerFolder:
        if folder is None:
            raise NotOffered("files and batches are not kept here: set COROSRV_FILES_PATH to a folder")
        return folder.owned_by(caller())

    @routes.post("/v1/files")
    @operation(
        "Files",
        "Upload a file",
        "The lines of a batch: JSON with `custom_id`, `method`, `url` and `body` each." + _OFF,
        form=answer_types.FileForm,
        answer=answer_types.FileObject,
        statuses=(*READS, 501, 503),
    )
    def upload() -> Response:
        return json_response(receive(current(request), own(), bodies, file_bytes))

    @routes.get("/v1/files")
    @operation("Files", "List files", answer=answer_types.FileList, statuses=(400, 501), query=answer_types.FilesQuery)
    def files() -> Response:
        own_folder, query = own(), convert(dict(request.args), answer_types.FilesQuery, strict=False)
        return long_json_response(msgspec.to_builtins(on_disk(own_folder.files, query)))

    @routes.get("/v1/files/<id>")
    @operation("Files", "Show a file", answer=answer_types.FileObject, statuses=(404, 501), parameters=_FILE)
    def file(id: str) -> Response:
        return json_response(on_disk(own().file, id))

    @routes.get("/v1/files/<id>/content")
    @operation(
        "Files",
        "Read a file's content",
        media_type="application/octet-stream",
        statuses=(404, 501),
        parameters=_FILE,
    )
    def content(id: str) -> Response:
        pieces = FilePieces(on_disk(own().open_content, id))
        response = Response(pieces, content_type="application/octet-stream")
        response.headers["Content-Length"] = str(pieces.n_bytes)
        return response

    @routes.delete("/v1/files/<id>")
    @operation("Files", "Delete a file", answer=answer_types.DeletedFile, statuses=(404, 409, 501), parameters=_FILE)
    def delete(id: str) -> Response:
        on_disk(own().delete, id)
        return json_response(answer_types.DeletedFile(id))

    @routes.post("/v1/batches")
    @operation(
        "Batches",
        "Make a batch",
        "Runs each line of a file as a request to one endpoint, behind all other requests. The answers are a file, in "
        "the order in which they are ready; failed lines are another one." + _OFF,
        body=answer_types.BatchBody,
        answer=answer_types.BatchObject,
        statuses=(*READS, 404, 501, 503),
    )
    def create() -> Response:
        own_folder, incoming = own(), current(request)
        body = body_reader.decode(incoming, bodies.read(incoming, max_body_bytes), _batch_body)
        batch = _create(own_folder, body)
        wake()
        return json_response(batch)

    @routes.get("/v1/batches")
    @operation(
        "Batches", "List batches", answer=answer_types.BatchList, statuses=(400, 501), query=answer_types.BatchesQuery
    )
    def batches() -> Response:
        own_folder, query = own(), convert(dict(request.args), answer_types.BatchesQuery, strict=False)
        return long_json_response(msgspec.to_builtins(on_disk(own_folder.batches, query)))

    @routes.get("/v1/batches/<id>")
    @operation("Batches", "Show a batch", answer=answer_types.BatchObject, statuses=(404, 501), parameters=_BATCH)
    def batch(id: str) -> Response:
        return json_response(on_disk(own().batch, id).batch)

    @routes.post("/v1/batches/<id>/cancel")
    @operation(
        "Batches",
        "Cancel a batch",
        "The lines that run are stopped; the answers of those that have ended stay.",
        answer=answer_types.BatchObject,
        statuses=(400, 404, 501),
        parameters=_BATCH,
    )
    def cancel(id: str) -> Response:
        return json_response(on_disk(own().cancel, id).batch)

    register_errors(routes, events.body)
    return routes


def on_disk(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Calls what reads or writes the folder, in a thread. Waits; raises Unavailable where the disk does not serve."""
    try:
        return call_in_thread(function, *arguments, **keywords)
    except OSError as error:
        raise Unavailable(f"files cannot be read or written here now: {error.strerror}") from error


def _create(folder: OwnerFolder, body: answer_types.BatchBody) -> answer_types.BatchObject:
    """Makes a batch, which waits to be run. Raises Refused, NotFound and LimitReached."""
    from corosrv.dialects.openai.batches.folder import StoredBatch, new_name

    seconds = int(body.completion_window[:-1]) * _UNIT_S[body.completion_window[-1]]
    if seconds > _MOST_WINDOW_S:
        raise Refused("completion_window: must be 30d at most", "completion_window")
    for name, value in (body.metadata or {}).items():
        if len(name) > 64 or len(value) > answer_types.MOST_TEXT:
            words = f"metadata: a name has at most 64 characters, a value {answer_types.MOST_TEXT}"
            raise Refused(words, "metadata")
    now = int(time.time())
    batch = answer_types.BatchObject(
        id=new_name("batch_"),
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        created_at=now,
        expires_at=now + seconds,
        metadata=body.metadata,
    )
    on_disk(folder.add_batch, StoredBatch(batch, caller(), new_name("file-"), new_name("file-")))
    return batch


def receive(incoming: Request, folder: OwnerFolder, bodies: BodyReader, file_bytes: int) -> answer_types.FileObject:
    """Reads a form with a file, which is written to the folder as it comes. Waits; raises Refused and Unavailable."""
    boundary = incoming.mimetype_params.get("boundary", "")
    if incoming.mimetype != "multipart/form-data" or not boundary:
        raise UnsupportedMedia("a file comes in a form: send multipart/form-data with the parts purpose and file")
    form = _Form(folder, incoming.content_length)
    try:
        decoder = MultipartDecoder(boundary.encode(), _HELD, max_parts=_MOST_PARTS)
        try:
            for piece in Turns().among(bodies.pieces(incoming, file_bytes + _FORM_MARGIN)):
                for begin in range(0, len(piece), _FED):
                    decoder.receive_data(piece[begin : begin + _FED])
                    form.take(decoder)
            decoder.receive_data(None)
            form.take(decoder)
        except RequestEntityTooLarge:
            raise Refused("the form has too many parts, or too large ones beside its file", None) from None
        except ValueError as error:
            raise Refused(f"the body is no whole multipart/form-data: {error}", None, "invalid_form") from None
        return form.finish()
    finally:
        form.close()


class _Form:
    """The parts of a form: `purpose`, and `file`, which goes to the folder."""

    def __init__(self, folder: OwnerFolder, n_bytes: int | None) -> None:
        self._folder = folder
        self._n_bytes = n_bytes
        self._part: str = ""
        self._purpose: bytes | None = None
        self._filename = ""
        self._upload: Upload | None = None
        self._held = bytearray()

    def take(self, decoder: MultipartDecoder) -> None:
        """Takes what can be read of the form now. Waits for the disk."""
        while not isinstance(event := decoder.next_event(), (NeedData, Epilogue)):
            if isinstance(event, File):
                self._begin_file(event)
            elif isinstance(event, Field):
                self._begin_field(event.name)
            elif isinstance(event, Data):
                self._add(event.data)

    def _begin_file(self, part: File) -> None:
        if part.name != "file" or self._upload is not None:
            raise Refused(f"{str(part.name)[:80]}: a form has one file, in the part 'file'", str(part.name)[:80])
        self._part = part.name
        self._filename = part.filename[:255] or "file"
        self._upload = on_disk(self._folder.upload, self._n_bytes)

    def _begin_field(self, name: str) -> None:
        if name == "file":
            raise Refused("file: the part has no filename, and so is no file", "file")
        if name != "purpose":
            raise NotSupported(f"{str(name)[:80]} is not offered for files", str(name)[:80], "unsupported_parameter")
        self._part, self._purpose = name, b""

    def _add(self, data: bytes) -> None:
        if self._part == "file":
            self._held += data
            if len(self._held) >= _PIECE:
                self._write()
        elif self._purpose is not None:
            self._purpose = (self._purpose + data)[:80]

    def _write(self) -> None:
        if self._upload is not None and self._held:
            data, self._held = bytes(self._held), bytearray()
            on_disk(self._upload.write, data)

    def finish(self) -> answer_types.FileObject:
        for name, value in (("file", self._upload), ("purpose", self._purpose)):
            if value is None:
                raise Refused(f"{name} is required", name, "missing_required_parameter")
        assert self._upload is not None
        if self._purpose != b"batch":
            purpose = (self._purpose or b"").decode("utf-8", "replace")
            raise NotSupported(f"purpose: only 'batch' is offered here, not {purpose!r}", "purpose")
        self._write()
        return on_disk(self._upload.finish, self._filename)

    def close(self) -> None:
        if self._upload is not None:
            on_disk(self._upload.close)


class FilePieces:
    """The content of a file as the body of an answer, read in a thread piece by piece. Closed by whoever sends it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.n_bytes = file.seek(0, 2)
        file.seek(0)

    def __iter__(self) -> Iterator[bytes]:
        n_left = self.n_bytes
        while n_left and (piece := call_in_thread(self._file.read, min(_PIECE, n_left))):
            n_left -= len(piece)
            yield piece

    def close(self) -> None:
        self._file.close()
