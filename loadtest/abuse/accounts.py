"""400 connections of one account, each asking again as soon as it is answered, beside another account."""

import time
from abuse import honest
from abuse.stage import token_request
from abuse.swarm import Cycle

A, B = "a" * 32 + "0123456789abcdef", "b" * 32 + "fedcba9876543210"


def scenarios(stage, number=400):
    issuer = stage.issuer([("flooder", A, "100000000/1d"), ("other", B, "100000000/1d")])
    mine, others = token_request(stage.issuer_url, A), token_request(stage.issuer_url, B)
    for count in (0, number):
        with Cycle(issuer.address, count, mine) as cycle:
            time.sleep(1)
            before = list(cycle.counts)
            outcome = honest.requests(issuer.address, others)
            signed, refused, broken = (now - then for now, then in zip(cycle.counts, before))
            remark = f"the flooder: {signed:,} signed, {refused:,} refused, {broken:,} broken"
            yield f"issuer: {count} connections of one account, beside another account", outcome, None, None, remark
