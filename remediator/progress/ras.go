package progress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/progress/ncclras"
)

// askNCCL asks a rank of a job for what NCCL knows, if the job names a port: rank 0, or the first rank that is behind if rank 0 is not to be
// connected to. Each knows of all. outcome is empty if nobody was to be asked; it has nothing of an answer.
func (f *follower) askNCCL(ctx context.Context, namespace string, known *followed, behind []int) (answer, outcome string) {
	if known.settings.NCCLRASPort == 0 || f.DryRun {
		return "", ""
	}
	ranks := known.job.Ranks()
	for _, i := range append([]int{0}, behind[:min(len(behind), 1)]...) {
		at, why := f.rasAddress(ctx, client.ObjectKey{Namespace: namespace, Name: ranks[i].Pod}, known)
		if why != nil {
			outcome = fmt.Sprintf("pod %s was not asked: %s", ranks[i].Pod, why)
			continue
		}
		if answer, why = f.ras.Ask(ctx, at); why != nil {
			return "", fmt.Sprintf("pod %s, port %d: %s", ranks[i].Pod, at.Port(), why)
		}
		return answer, fmt.Sprintf("pod %s, port %d: its answer is the key nccl-ras.txt", ranks[i].Pod, at.Port())
	}
	return "", outcome
}

// rasAddress is where a pod of the job answers. The pod is read now: its address may be that of another pod by the time that it has ended.
func (f *follower) rasAddress(ctx context.Context, key client.ObjectKey, known *followed) (at netip.AddrPort, err error) {
	var pod corev1.Pod
	if err := f.apiReader.Get(ctx, key, &pod); err != nil {
		return at, errors.New("it cannot be read now")
	}
	if !slices.Contains(known.job.Incarnation(), pod.UID) {
		return at, errors.New("it was replaced")
	}
	return ncclras.Address(&pod, known.settings.NCCLRASPort) //nolint:wrapcheck // it is shown
}
