import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround.training import TrainingParams
from wardround.training.optimizers import BufferOptimizer

choices = st.builds(
    TrainingParams,
    optimizer=st.sampled_from(["adam", "sgd"]),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    weight_decay=st.sampled_from([0.0, 0.1]),
)


def reference(params, weights, lr):
    if params.optimizer == "adam":
        return torch.optim.Adam([weights], lr=lr, weight_decay=params.weight_decay)
    return torch.optim.SGD([weights], lr=lr, momentum=params.momentum, weight_decay=params.weight_decay)


def close(ours, theirs):
    return torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)


@given(choices, st.integers(0, 1000), st.floats(1e-4, 0.5))
@settings(deadline=None, max_examples=40)
def test_steps_are_those_of_torch(params, seed, lr):
    generator = torch.Generator().manual_seed(seed)
    buffers = [torch.randn(3, *shape, generator=generator, dtype=torch.float64) for shape in ((4, 5), (7,))]
    expected = [buffer.clone() for buffer in buffers]
    optimizer = BufferOptimizer(params, buffers)
    for _ in range(2):  # beginning again forgets the past
        optimizer.begin(lr, rows=3)
        theirs = [reference(params, buffer, lr) for buffer in expected]
        for _ in range(4):
            for gradient, buffer, other in zip(optimizer.gradients, expected, theirs, strict=True):
                # as uneven as gradients are, with exact zeros among them
                drawn = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
                gradient.copy_(drawn.pow(9).mul(1e-3) * (drawn > -1))
                buffer.grad = gradient.clone()
                other.step()
            optimizer.step(optimizer.view(3))
            assert all(close(a, b) for a, b in zip(buffers, expected, strict=True))


@given(choices, st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_an_only_step_is_the_first_step(params, seed):
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(1, 6, generator=generator, dtype=torch.float64)
    scratch = torch.empty(3, 6, dtype=torch.float64)
    gradient = torch.randn(3, 6, generator=generator, dtype=torch.float64).pow(9)
    expected = start.repeat(3, 1)
    expected.grad = gradient.clone()
    reference(params, expected, 0.1).step()
    optimizer = BufferOptimizer(params, [scratch])
    optimizer.gradients[0].copy_(gradient)
    divisors = optimizer.single_step_divisors(optimizer.view(3), [start], lr=0.1)
    step = optimizer.gradients[0] * -0.1 if divisors is None else optimizer.gradients[0] / divisors[0]
    assert close(start + step, expected)


def test_only_the_first_rows_move():
    weights = [torch.ones(4, 2)]
    optimizer = BufferOptimizer(TrainingParams(), weights)
    optimizer.begin(0.1, rows=4)
    optimizer.gradients[0].fill_(1.0)
    optimizer.step(optimizer.view(2))
    assert torch.allclose(weights[0][:2], torch.tensor(0.9))
    assert weights[0][2:].tolist() == [[1, 1], [1, 1]]
