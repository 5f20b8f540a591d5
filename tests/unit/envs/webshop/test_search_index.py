import pytest

from rollart_hpc.envs.webshop.catalogue import SHIPPED, load_catalogue
from rollart_hpc.envs.webshop.search_index import SearchIndex, words_of


def test_words_are_compared_without_endings_case_and_stop_words():
    text = "The Women's dresses, boxes & berries in 2 sizes — glass bus_stop Straße"
    assert words_of(text) == ["women", "dress", "box", "berry", "2", "size", "glass", "bus", "stop", "straße"]


def test_scores_are_those_on_paper():
    # Lengths 1, 2, 3, mean 2. Rarity: "a1" in one of three, ln(1 + 2.5 / 1.5) = 0.981; "b1" in two, ln(1.6) = 0.470.
    index = SearchIndex(["a1", "b1 b1", "b1 c1 c1"])
    # "b1": document 1 has 0.470 * 2 / (2 + 0.9 * 1.0) = 0.324, document 2 has 0.470 * 1 / (1 + 0.9 * 1.2) = 0.226.
    assert index.search("b1", 3) == [1, 2]
    # "a1": document 0 has 0.981 * 1 / (1 + 0.9 * 0.8) = 0.570, which lies between their doubles and their trebles.
    assert index.search("a1 b1", 3) == [0, 1, 2]
    assert index.search("b1 b1 a1", 3) == [1, 0, 2]
    assert index.search("b1 b1 b1 a1", 3) == [1, 2, 0]
    assert index.search("unknown", 3) == []
    assert index.search("", 3) == []
    assert SearchIndex([]).search("a1", 3) == []


def test_equal_documents_come_in_their_order_and_no_more_than_asked_for():
    index = SearchIndex(["same words"] * 30)
    assert index.search("words", 7) == list(range(7))


def test_an_independent_engine_ranks_the_shipped_catalogue_alike():
    bm25s = pytest.importorskip("bm25s")
    catalogue = load_catalogue(SHIPPED)
    oracle = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    oracle.index([words_of(product.searched_text) for product in catalogue.products], show_progress=False)
    numbers = {product.asin: number for number, product in enumerate(catalogue.products)}
    for goal in catalogue.goals[:100]:
        scores = oracle.get_scores(words_of(goal.instruction))
        hits = [scores[numbers[product.asin]] for product in catalogue.search(goal.instruction, 50)]
        assert hits == pytest.approx(sorted(scores, reverse=True)[:50], rel=1e-4)
