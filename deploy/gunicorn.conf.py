"""gunicorn -c deploy/gunicorn.conf.py corosrv.app, with the defaults of `corosrv serve`; write your own below."""

from corosrv.gunicorn_app import OPTIONS

bind = "127.0.0.1:8080"
workers = 1  # each has an engine and a model of its own

globals().update(OPTIONS)
