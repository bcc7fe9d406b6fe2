"""The exceptions of corosrv, as one tree.

Inner code raises these. The attributes of a class say what the error means for the client: the HTTP status, the kind
of failure, and a code for programs. Each dialect writes errors in its own form: corosrv.dialects.openai.events and its
like.

CorosrvError
├── SettingsError            a setting is wrong; the start stops
├── LibllamaError            libllama is missing, or is not the one that the extension was built with
├── BenchError               the load generator cannot run as the command line says
├── ManagementError          a management command cannot be carried out
├── HubError                 a model of a hub cannot be had
│   └── HubMissing           the library that speaks to hubs is not installed
├── HttpError                an unknown path, a wrong method
├── Unauthorized             the request has no key, or an unknown one
├── Forbidden                a web page without permission, or a host name that is not this server's
├── ClientGone               the client left before its answer was ready
├── LoopDetected             a request that went from peer to peer has come back
├── Refused                  the request is wrong; `param` names the parameter
│   ├── PromptTooLong        the prompt has more tokens than the context of a slot
│   ├── BodyTooLarge         the body is over the limit
│   ├── MessageTooLarge      a message over gRPC is larger than one may be
│   ├── BodyTooSlow          the body did not arrive in time
│   ├── BodyIncomplete       the body ended early
│   ├── UnsupportedMedia     the body is not JSON, or is compressed
│   ├── InvalidJson          the body is not well-formed JSON
│   ├── InvalidImage         an image is none, of a kind that is not read, or over a limit
│   ├── InvalidTrip          a peer tells of a request's way what no replica writes
│   ├── TemplateTooCostly    the chat template takes more for the conversation than it may
│   ├── NotFound             there is nothing of this name here
│   │   ├── ModelNotFound    there is no model of this name here
│   │   └── ObjectNotFound   there is no such object here
│   ├── InvalidGrammar       the grammar is not GBNF, or is over a limit
│   ├── InvalidSchema        the JSON schema is not one, or no grammar can hold it
│   ├── NotSupported         a known parameter that this server does not offer
│   ├── NotOffered           the endpoint is switched off, or the model lacks the ability
│   ├── InvalidInput         fields of a prediction's request are wrong
│   ├── NotStreamed          the predictor does not stream
│   ├── IdTaken              another prediction has this id
│   ├── TooManyReaders       too many clients read the events of a prediction
│   ├── InvalidTensor        a tensor is not what its datatype and shape say
│   ├── CallRefused          a handler refused its input
│   ├── ObjectExpired        the object was here, and is no longer
│   ├── EventsGone           events of a stream that a client comes back for are kept no longer
│   ├── ObjectTooLarge       the object is larger than the store takes
│   ├── KeyReused            an Idempotency-Key came with another request than before
│   ├── McpServerFailed      an MCP server did not list its tools, or lists some that cannot be used
│   └── Conflict             two models match alike, or calls would wait for each other
├── Unavailable              the server cannot take the request now; a later one may succeed
│   ├── Starting             the model is loading
│   ├── ModelFailed          the model could not be loaded
│   ├── ShuttingDown         the server is stopping
│   ├── NoDescriptor         no file descriptor is left
│   ├── NoWorker             no worker serves the model now
│   ├── SlotBusy             the slot's task did not end in time
│   ├── TooManyBodies        the bodies of all requests together are too large
│   ├── TooManyImages        the images of all requests together are too large
│   ├── TooBusy              the request could not be checked in time
│   ├── NoCapacity           every slot runs a prediction
│   ├── WorkerGone           the predictor's process has ended
│   ├── NotHandedOver        a call did not reach its worker
│   ├── RedisUnavailable     Redis cannot be reached, or did not answer in time
│   ├── RedisRefused         Redis answered a command with an error
│   ├── DecoderUnavailable   images cannot be decoded now
│   ├── EncoderBusy          as many images as may wait for the encoder do
│   ├── EncoderUnavailable   images cannot be encoded now
│   ├── TooManyMembers       as many requests are in groups as may be
│   ├── TooManyLogs          as many streams run that their clients may resume as may
│   ├── EngineGone           the engine has died of such requests
│   ├── LimitReached         the API key has used what it may use for now
│   ├── KeyNotCounted        a peer's API key has limits that could not be kept here
│   └── QueueFull            the queue is full
├── AppError                 an application registers a handler that cannot be served; its worker does not start
├── DeadlinePassed           the time of a call was over
│   └── EncodeTimedOut       an image took longer than encodes may
├── CallCancelled            a call was cancelled
│   └── GroupAborted         with the group of requests that it was in
├── HandlerFailed            a handler raised, or returned what it must not
├── AnswerTooLarge           a handler's answer is larger than a message may be
├── StoreFull                no object can go to make room for another
├── WorkerLost               the worker ended while it ran a call
├── RedirectRefused          a redirect of one of our own requests leads where it must not go
├── DestinationRefused       one of our own requests would go where no client may send it
├── LoadError                there is no such predictor, or it does not fit its slots; its set-up fails
├── SignatureError           a predictor's inputs or output cannot be read; its set-up fails
├── InputFailed              an input could not be fetched or decoded; the prediction fails
├── OutputFailed             an output could not be sent; the prediction fails
├── JobFailed                a running job ended in an error
│   ├── JobRefused           because of what the client sent; also a Refused
│   ├── JobPutOff            the server is stopping; also an Unavailable
│   ├── JobWaitedTooLong     no slot became free in time; also an Unavailable
│   └── JobOverdue           its deadline passed while it ran; also a DeadlinePassed
├── ReadTimeout              a read timed out
├── WireError                two processes cannot talk to each other
│   ├── BadFrame             the received bytes are no message
│   ├── ProtocolError        a message came that is not allowed now
│   │   └── RowsNotFinite    the encoder wrote numbers that are not finite
│   ├── FrameTooLarge        the message is larger than the channel carries
│   └── ChannelClosed        the other end is closed
└── Misuse                   a bug of the caller; the message says what to do instead
    ├── IllegalTransition    a state machine has no such transition
    ├── WrongThread          a reader was used by another thread
    ├── UsedAfterClose       an engine or reader was used after close()
    └── UsedAfterFork        an engine or reader was used in a forked child

Exceptions that stand outside this tree are signals within one package, caught there; their docstrings say where.
"""

from corosrv.base.errors.base import *  # noqa: F403
from corosrv.base.errors.calls import *  # noqa: F403
from corosrv.base.errors.unavailable import *  # noqa: F403

# Tracebacks and logs name an error by the module that it is imported from.
for _kind in list(vars().values()):
    if isinstance(_kind, type) and _kind.__module__.startswith(__name__):
        _kind.__module__ = __name__
