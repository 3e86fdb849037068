"""What is counted and measured for /metrics. Knows no route, no queue and no worker: it is told."""
