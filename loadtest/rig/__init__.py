"""What the measurements of this directory share: programs, tokens, clients, readings, reports and plots."""
