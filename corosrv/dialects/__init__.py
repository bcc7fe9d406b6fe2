"""The APIs that clients speak, each a translation between its bodies and jobs.

`generation` and `chat` are what several share; `openai`, `anthropic`, `llamacpp` and `ollama` are APIs of language
models, `kserve` is KServe's v2 protocol over REST and gRPC, `predictions` is Cog's API.

Imports all wings but gateway and serving.
"""
