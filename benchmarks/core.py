"""Cost of the core: all-anchor spectra, the certified band, and how it grows with n.

python -m benchmarks core
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from benchmarks.timing import alternate
from eigenbatch import Contrast, gradient_band, leave_out_top_eigenvalues
from eigenbatch_paper.synthetic import gaussian_rows, spiked_eigenvalues

TAU = 0.1


def main() -> str:
    return "\n\n".join([_spectra(), _band(), _growth()])


def _spectra() -> str:
    """All anchors at once against a loop of eigvalsh, timed on 16 anchors and scaled."""
    sample = 16
    rows = [
        "**`leave_out_top_eigenvalues` against a loop of `torch.linalg.eigvalsh` over anchors** "
        f"(float64; the loop is timed on {sample} anchors a round and multiplied up)\n",
        "| n | d | spectrum | loop, d x d | loop, smaller Gram | largest relative error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for n, d in ((4096, 256), (256, 1024), (1024, 128)):
        for name, top in (("isotropic", 1 / d), ("spiked 0.3", 0.3)):
            z = gaussian_rows(
                n, spiked_eigenvalues(d, top), generator=torch.Generator().manual_seed(0)
            )
            positive = torch.arange(n).roll(n // 2)
            anchors = list(range(0, n, n // sample))[:sample]

            def loop(z: Tensor = z, p: Tensor = positive, anchors: list[int] = anchors) -> Tensor:
                second = z.T @ z
                return torch.stack([_top_of(second, z[i], z[p[i]]) for i in anchors])

            def small(z: Tensor = z, p: Tensor = positive, anchors: list[int] = anchors) -> Tensor:
                keep = torch.ones(len(z), dtype=torch.bool)
                tops = []
                for i in anchors:
                    keep[[i, int(p[i])]] = False
                    rest = z[keep]
                    gram = rest @ rest.T if len(rest) < rest.shape[1] else rest.T @ rest
                    tops.append(torch.linalg.eigvalsh(gram)[-1])
                    keep[[i, int(p[i])]] = True
                return torch.stack(tops)

            def ours(z: Tensor = z, p: Tensor = positive) -> Tensor:
                return leave_out_top_eigenvalues(z, p)

            timings = alternate({"loop": loop, "small": small, "ours": ours}, rounds=7)
            for slow in ("loop", "small"):
                timings.seconds[slow] = [t * n / sample for t in timings.seconds[slow]]
            found = ours()[anchors] * (n - 2)
            error = ((found - loop()).abs() / loop()).max().item()
            rows.append(
                f"| {n} | {d} | {name} | {timings.ratio('loop', 'ours')} "
                f"| {timings.ratio('small', 'ours')} | {error:.0e} |"
            )
    return "\n".join(rows)


def _top_of(second: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(second - torch.outer(a, a) - torch.outer(b, b))[-1]


def _views(n: int, d: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(n // 2, d, generator=generator)
    return first, first + torch.randn(n // 2, d, generator=generator)


def nt_xent_step(z1: Tensor, z2: Tensor) -> Tensor:
    """NT-Xent forward and backward as people write it: the yardstick."""
    z1, z2 = z1.clone().requires_grad_(), z2.clone().requires_grad_()
    z = normalize(torch.cat([z1, z2]))
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    loss = cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))
    loss.backward()
    return loss


def _band() -> str:
    rows = [
        '**`gradient_band(method="certified")` against NT-Xent forward + backward** (float32)\n',
        "| n | d | band / NT-Xent | band incl. `Contrast.paired` / NT-Xent |",
        "| --- | --- | --- | --- |",
    ]
    for n, d in ((1024, 128), (4096, 256)):
        z1, z2 = _views(n, d)
        contrast = Contrast.paired(z1, z2)
        timings = alternate(
            {
                "nt_xent": lambda z1=z1, z2=z2: nt_xent_step(z1, z2),
                "band": lambda c=contrast: gradient_band(c, TAU),
                "whole": lambda z1=z1, z2=z2: gradient_band(Contrast.paired(z1, z2), TAU),
            },
            rounds=31 if n == 1024 else 11,
        )
        rows.append(
            f"| {n} | {d} | {timings.ratio('band', 'nt_xent')} "
            f"| {timings.ratio('whole', 'nt_xent')} |"
        )
    return "\n".join(rows)


def _growth() -> str:
    """Time of the certified band relative to n = 256, against the growth of n^2."""
    d, sizes = 256, (256, 512, 1024, 2048, 4096, 8192)
    contrasts = {n: Contrast.paired(*_views(n, d)) for n in sizes}
    timings = alternate(
        {str(n): lambda c=c: gradient_band(c, TAU) for n, c in contrasts.items()}, rounds=7
    )
    rows = [
        f"**Growth of the certified band with n** (d = {d}, float32, relative to n = {sizes[0]})\n",
        "| n | " + " | ".join(map(str, sizes)) + " |",
        "| --- |" + " --- |" * len(sizes),
        "| time | " + " | ".join(timings.ratio(str(n), str(sizes[0])) for n in sizes) + " |",
        "| n^2 d | " + " | ".join(f"{(n / sizes[0]) ** 2:,.0f}x" for n in sizes) + " |",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    print(main())
