"""The queue that pictures wait in."""

import threading

queue_lock = threading.Lock()
