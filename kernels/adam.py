"""What becomes of a gradient: written out, or spent on a step of Adam where it was computed."""

import triton
import triton.language as tl


@triton.jit
def put_gradient(
    ptr, exp_avg_ptr, exp_avg_sq_ptr, offset, inside, gradient,
    one_minus_beta1, beta2, one_minus_beta2, step_size, inv_bias_sqrt, eps,
    ADAM: tl.constexpr, UPDATE: tl.constexpr,
):  # fmt: skip
    """Without ADAM, ``ptr`` receives the gradient. With it, ``ptr`` is the parameter itself:

        m += (1-beta1) (g - m),    v = beta2 v + (1-beta2) g^2,
        p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps),

    and UPDATE is false for one that is not trained.
    """
    if not ADAM:
        tl.store(ptr + offset, gradient.to(ptr.dtype.element_ty), mask=inside)
    elif UPDATE:
        m = tl.load(exp_avg_ptr + offset, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(exp_avg_sq_ptr + offset, mask=inside, other=0.0).to(tl.float32)
        p = tl.load(ptr + offset, mask=inside, other=0.0).to(tl.float32)
        m = tl.fma(gradient - m, one_minus_beta1, m)
        v = tl.fma(gradient * gradient, one_minus_beta2, v * beta2)
        # eps > 0 in any use; lanes outside divide zero by it.
        update = m / tl.fma(tl.sqrt(v), inv_bias_sqrt, eps)
        tl.store(exp_avg_ptr + offset, m.to(exp_avg_ptr.dtype.element_ty), mask=inside)
        tl.store(exp_avg_sq_ptr + offset, v.to(exp_avg_sq_ptr.dtype.element_ty), mask=inside)
        p = tl.fma(update, -step_size, p)
        tl.store(ptr + offset, p.to(ptr.dtype.element_ty), mask=inside)
