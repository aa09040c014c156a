"""Weighted sums of updates without any trusted party: pairwise masks that cancel, and keys shared among hospitals.

The protocol of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), with
its consistency check. A round has five stages; each hospital answers each of them once:

1. `train`: it trains, keeps its update, and sends two public keys and its reports;
2. `share-keys`: it is told everybody's keys and weights, and sends shares of its mask key and of its own mask's seed
   to each of the others, encrypted for them;
3. `mask`: it sends its weighted update plus its own mask plus a mask for each of the others;
4. `confirm`: it is told whose masked updates arrived, and tells the others what it was told, by tags that only they can
   check;
5. `reveal`: where enough others were told the same, it reveals for each of the others one share: of the seed, if that
   one's update arrived, of the key, if not. The server takes off the masks that did not cancel, and has the sum.

`client` and `server` are the two sides as state machines, without messages; `cohort` is what they agree on, `masks` the
arithmetic, `identity` the hospitals' registered keys, `in_process` a whole round in one process.

Shamir's shares, ECDH, encryption and signatures are those of Flower's package. Its generator of masks is not used: it
folds every seed to 32 bits, which can be searched. Masks are AES-256 in counter mode here, as in the paper.
"""
