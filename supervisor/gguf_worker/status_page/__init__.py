"""The page at `/`: what is served, how it goes, and what happened, in a browser and live.

subject  the seam: what the page is about
board    looks at it once a second, whoever watches, and keeps a history
ring     the last of something, with positions
rates    from counts to tokens per second
events   /v1/events: the board as server-sent events
pages    the files and the headers that go with them
files/   HTML, CSS and one module of JavaScript, as they are sent
"""
