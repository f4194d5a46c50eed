"""Proofs: experiments that repeat claims of the papers on small data with this code.

Run one with `python -m benchmarks.proofs NAME`.

decoupled     softmax makes the positives of a query compete, and decoupled softmax does not (DEXML, section 4.1)
memorise      a dual encoder can memorise random pairs (DEXML, appendix C.1)
lambda        instances and labels together are better than either alone (RAE-XMC, Tables 4 and 8)
cache         with the gradient cache, memory grows little with the number of labels
clustering    balanced clustering of half a million vectors is good and needs little memory (NGAME)
"""
