"""rkserve as a service of systemd: what installing and removing it takes, and how it stands."""
