from rollart_hpc.data_plane.backends.echo import EchoEngine
from rollart_hpc.data_plane.backends.vllm import compat
from rollart_hpc.data_plane.backends.vllm.async_engine import VllmAsyncEngine
from rollart_hpc.data_plane.backends.vllm.thread_engine import VllmThreadEngine
from rollart_hpc.data_plane.engine import create_engine


def test_the_engine_follows_the_configuration_and_the_machine(policies):
    expected = VllmAsyncEngine if compat.has_gpu() else VllmThreadEngine
    assert isinstance(create_engine(policies.config(), seed=0), expected)
    assert isinstance(create_engine(policies.config(engine="echo"), seed=0), EchoEngine)


def test_the_configuration_reaches_vllm(policies):
    config = policies.config(kv_cache_mb=32, max_concurrent=7, block_size=64, tensor_parallel=2)
    arguments = compat.engine_arguments(config, seed=3)
    assert arguments["model"] == str(policies.paths[0])
    assert (arguments["dtype"], arguments["max_model_len"], arguments["seed"]) == ("float32", 512, 3)
    assert (arguments["kv_cache_memory_bytes"], arguments["max_num_seqs"]) == (32 << 20, 7)
    assert (arguments["block_size"], arguments["tensor_parallel_size"]) == (64, 2)
