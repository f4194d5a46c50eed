"""Proofs: experiments that repeat claims of the papers on small data with this code.

Run one with `python -m benchmarks.proofs NAME`.

frozen        the memory lifts encoders that are not trained (RAE-XMC, Table 5)
lambda        instances and labels together are better than either alone (RAE-XMC, Tables 4 and 8)
time          RAE-XMC needs less training time than DEXML (RAE-XMC, Figure 2)
ova           the votes of instances lift a one-versus-all classifier (RAE-XMC, Equation 11)
decoupled     softmax makes the positives of a query compete, and decoupled softmax does not (DEXML, section 4.1)
memorise      a dual encoder can memorise random pairs (DEXML, appendix C.1)
prime         each part of PRIME raises its quality (PRIME, Table 6)
unidec        each part of UniDEC raises its quality (UniDEC, Table 5)
cache         with the gradient cache, memory grows little with the number of labels
clustering    balanced clustering of half a million vectors is good and needs little memory (NGAME)

`docs/claims.md` has the measurements of all but the last two.
"""
