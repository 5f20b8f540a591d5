import os

from rollart_hpc.sandbox.per_process import PerProcess


def test_a_forked_copy_lets_go_of_its_parents_object_and_makes_its_own():
    left: list[int] = []
    own = PerProcess(os.getpid, leave=left.append)
    assert own() == own() == os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if own() == os.getpid() and left == [os.getppid()] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
