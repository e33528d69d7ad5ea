"""How the server is watched: log lines, histograms, the profiler, the watchdog.

Owns: log formats, counts by bucket, device traces, memory of the process, the thread that notices a step that hangs.
Never: decides what runs; never knows of requests or schedulers.
"""
