"""attsvm measured against its peers: same instances, same machine, same certificate.

One module per job (:mod:`~attsvm.bench.solve`, :mod:`~attsvm.bench.step`,
:mod:`~attsvm.bench.train`), and what they share: instances, peers, the certificate that judges
every solver alike, processes that end when their time is over, and tables.
"""
