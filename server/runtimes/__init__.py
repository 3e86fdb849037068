"""Runtime libraries of the vendor as the owner of a machine handles them: put in place, looked over."""
