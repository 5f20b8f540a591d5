"""The weight store between trainer and generation workers: Mooncake for bytes, the bus for manifests (section 6.3).

server → store → buckets → publisher → catalog (commit) → puller; garbage removes what is old.
"""
