"""A small Flask app that existed before corosrv; the two marked lines are all that it takes to mount it.

gunicorn -k gevent --chdir deploy example_app:app
"""

from flask import Flask

import corosrv  # the first line

app = Flask(__name__)
app.register_blueprint(corosrv.blueprint(), url_prefix="/llm")  # the second line


@app.get("/")
def index() -> str:
    return "<h1>An app of its own</h1><p>Its model answers under /llm/v1.</p>"


@app.get("/ping")
def ping() -> dict[str, bool]:
    return {"pong": True}
