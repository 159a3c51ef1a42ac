"""OpenAI's API over routes.

app          the application: paths, and errors that are about them
gateway      what the endpoints share: models, keys, limits, what is going on
catalogue    which models there are; mesh_catalogue, those of a tracker
model        a route under a name, with its limits and its text
exchange     one request and its answer; a client that leaves has everything given up
completions  /v1/completions and /v1/chat/completions
texts        /v1/embeddings, /tokenize, /detokenize
body, fields, requests, options, messages   what a client sends, read strictly
admission    who generates now, who waits, who is refused
generating   the choices of a request through a route
stops, pieces, logprobs, answers   from drawn tokens to OpenAI's shapes; pure
reply        JSON or a stream of events
chat         prompts from the artifact's own template
schemas      JSON schemas as grammars
aside        programs beside this process for what may hang or is native: aside_template, aside_schema
embedding    rows pooled to a vector
figures      counts for /metrics and the status; recent, the last generations
shown        a gateway over a mesh as its status page shows it
errors       what goes wrong, in OpenAI's shape
"""
