"""HTTP: the server's side of connections, requests and answers, and pages that are no dialect.

`http` reads requests under limits and writes answers and events. `management` is the operator's interface, `docs` the
API document and its page, `page` the page at `/`, `live` the stream of what the server does, `groups` a client's name
for requests that are cancelled together.

Imports base, formats, contracts, workers, models, fleet and images.
"""
