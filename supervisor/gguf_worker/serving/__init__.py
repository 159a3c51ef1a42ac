"""Shards served in the foreground: the service, its HTTP status, readiness, and the log of what happens.

signals   SIGTERM and Ctrl-C, as events
service   supervised shards from their start to their drain
part      what is served with them and shown on the same pages
shard     one of them: its supervisor, its last ends, the moment by which it must move on
journal   its events as lines of the log
liveness  how long it may stay as it is
notify    readiness and watchdog for systemd
address   where HTTP listens
server    HTTP itself: uvicorn, with limits
request   an id for each HTTP request
app       /healthz, /readyz, /metrics, /v1/status
status    the JSON of /v1/status
shown     the same for the page at /, whose room is status_page
exposition  the figures of /metrics
"""
