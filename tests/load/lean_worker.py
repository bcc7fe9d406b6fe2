"""The least that a worker can do: answers each prediction with Done, in one thread."""

import argparse
import selectors

from corosrv.contracts.jobs import setup
from corosrv.workers.wire import messages
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.thread_channel import ThreadChannel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--control", type=int)
    parser.add_argument("--lifeline", type=int)
    arguments = parser.parse_args()
    control = ThreadChannel[messages.ControlToServer, messages.ControlToWorker].inherited(
        arguments.control, StructCodec(messages.ControlToWorker), takes_fds=True
    )
    init = control.receive()
    assert isinstance(init, messages.Init)
    control.send(messages.Ready(list(range(init.num_slots or 1)), {}))
    assert isinstance(control.receive(), messages.Lanes)
    fds = control.take_fds()
    selector = selectors.EpollSelector()
    selector.register(control.fileno(), selectors.EVENT_READ, None)
    for fd in fds:
        slot = ThreadChannel[messages.SlotToServer, messages.SlotToWorker].inherited(
            fd, StructCodec(messages.SlotToWorker)
        )
        selector.register(fd, selectors.EVENT_READ, slot)
    while True:
        for key, _ in selector.select():
            if key.data is None:
                return  # a shutdown, or the server's end
            predict = key.data.receive()
            key.data.send(setup.Done(predict.id, 0.0))


if __name__ == "__main__":
    main()
