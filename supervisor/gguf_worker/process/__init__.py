"""One child process: spawn, pipes, death, exit cause, stop ladder, stderr, release."""
