"""tfsvm-6: which instances count as those whose tokens all support."""

from attsvm_papers.kit import experiment


def test_a_token_at_the_edge_of_support_is_no_evidence_against_the_identity() -> None:
    """In the instance of seed 50027 a token with a multiplier of zero has margin 1 + 6e-6, within
    the tolerance of a support token; the identity asks for margins of one.
    """
    chosen = experiment("tfsvm-6")
    cell = {"part": "optimal", "n": 6, "T": 8, "d": 256, "seeds": [50024, 50025, 50026, 50027]}
    evidence = chosen.evidence([cell], [chosen.run(**cell)])
    edge = evidence.where(seed=50027)
    assert edge["all_support"][0] == 1
    assert edge["identity"][0] > 1e-12
    (claim,) = (each for each in chosen.claims if each.id == "T14b")
    verdict = claim.check(evidence)
    assert verdict.passed == verdict.counted > 0
