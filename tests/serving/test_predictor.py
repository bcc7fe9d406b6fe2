"""The part of a server that serves a predictor, where it cannot; tests/serve has it where it can."""

from flask import Flask

from corosrv.app import Server
from corosrv.contracts import settings

PREDICTOR = {"predictor": "deploy/predictor/predict.py:Predictor"}


def test_a_server_that_gives_each_request_a_thread_is_told_what_to_use():
    server = Server(settings.load(PREDICTOR, environ={}))
    app = Flask(__name__)
    app.register_blueprint(server.make_blueprint(), url_prefix="/p")

    with app.test_client() as client:
        health = client.get("/p/health-check").get_json()
        answer = client.post("/p/predictions", json={"input": {"name": "Ada"}})

    assert health["status"] == "SETUP_FAILED"
    assert "gunicorn -k gevent" in health["setup"]["logs"]
    assert (answer.status_code, answer.get_json()["status"]) == (503, "failed")
    assert "gunicorn -k gevent" in answer.get_json()["error"]
