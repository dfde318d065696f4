"""Live translation in a browser: a web server, its page, and talks that survive a lost connection.

`messages` is the protocol, `talk` what becomes of one speaker's audio, `texts` its text on disk, `server` connections
and limits. Needs the extra `live` (websockets; soxr for audio that is not sampled at 16 kHz).
"""
