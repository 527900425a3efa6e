package kinds

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// maxOwners bounds the way from a pod to its job.
const maxOwners = 6

// Workload is what stands above a pod: a job of a known kind, or an unsupported object that controls it or the pod itself,
// or neither; or a pod without a controller itself.
type Workload struct {
	Namespace string
	// Kind is that of the job.
	Kind Kind
	Job  *restart.Job
	// Unsupported controls the pod or the job, and is of a kind that cannot be restarted.
	Unsupported *metav1.OwnerReference
	// BarePod is a pod without a controller.
	BarePod *corev1.Pod
	// Owners are the controllers that were passed, from the one of the pod up, the last included.
	Owners []metav1.OwnerReference

	// direct is how the first of them recognizes its pods; nil if its kind is not known.
	direct labels.Selector
	// forged: an owner on the way is none that the job's operator makes.
	forged bool
}

// Owns reports whether a pod, which names the first of the owners as its controller, is really one of the workload. Whoever may
// create pods can name any owner of the namespace; what such a pod does is no matter of that owner. Of objects that are not
// restarted it is not asked.
func (w Workload) Owns(pod metav1.Object) bool {
	switch {
	case w.Job == nil || w.Unsupported != nil || w.Job.Owns(pod):
		return true
	case !w.Job.OtherControllers || w.forged || w.direct == nil:
		return false
	}
	known := func(owner metav1.OwnerReference) bool { _, known := w.Job.Controllers[owner.UID]; return known }
	set := labels.Set(pod.GetLabels())
	return slices.ContainsFunc(w.Owners, known) && w.direct.Matches(set) && w.Job.Pods.Matches(set)
}

// UID is that of the topmost object; empty if there is none.
func (w Workload) UID() types.UID {
	switch {
	case w.Unsupported != nil:
		return w.Unsupported.UID
	case w.Job != nil:
		return w.Job.Object.GetUID()
	case w.BarePod != nil:
		return w.BarePod.UID
	}
	return ""
}

// labels are those that may opt in; an unsupported owner is not read.
func (w Workload) labels() map[string]string {
	switch {
	case w.Job != nil:
		return w.Job.Object.GetLabels()
	case w.BarePod != nil:
		return w.BarePod.Labels
	}
	return nil
}

// OwnerResolver finds the workloads of pods. It remembers what it found, so that a job with many pods is read once. Make
// it with [NewOwnerResolver], and a new one for each reconcile.
type OwnerResolver struct {
	reader client.Reader
	kinds  []Kind
	seen   map[reference]Workload
	// tooLarge are the errors of owners of which one is too large to judge.
	tooLarge map[reference]error
	// read are the objects that were read on the way, so that a common owner of many is read once; nil: it is gone.
	read map[reference]*restart.Job
	// kept is what they take of memory, in bytes, by namespace; that of "" is their sum.
	kept map[string]int
}

const (
	// maxJobs is the most that the jobs may take that a resolver remembers, in bytes of memory, and maxOfNamespace those of one namespace:
	// whoever may create jobs and pods can have large jobs on a node.
	maxJobs, maxOfNamespace = 48 << 20, 12 << 20
)

// keep remembers an object. Its error is [slim.ErrTooLarge].
func (r OwnerResolver) keep(key reference, job *restart.Job) error {
	size := slim.HeapOf(job)
	if r.kept[""]+size > maxJobs || r.kept[key.namespace]+size > maxOfNamespace {
		return fmt.Errorf("%s %s with the others of its namespace: %w", job.GVK.Kind, job.Key(), slim.ErrTooLarge)
	}
	r.kept[""] += size
	r.kept[key.namespace] += size
	r.read[key] = job
	return nil
}

// reference is an owner as a pod names it, with all that it says: one with the UID of a job and the wrong name leads nowhere, and must
// not hide that job.
type reference struct {
	namespace, apiVersion, kind, name string
	uid                               types.UID
}

func referenceOf(namespace string, owner metav1.OwnerReference) reference {
	return reference{namespace, owner.APIVersion, owner.Kind, owner.Name, owner.UID}
}

// NewOwnerResolver returns a resolver that reads with reader, which must be live: a cache may hold no owners.
func NewOwnerResolver(reader client.Reader, all []Kind) OwnerResolver {
	return OwnerResolver{
		reader: reader, kinds: all,
		seen: map[reference]Workload{}, tooLarge: map[reference]error{}, read: map[reference]*restart.Job{}, kept: map[string]int{},
	}
}

// OfPod finds the workload of a pod.
func (r OwnerResolver) OfPod(ctx context.Context, pod *corev1.Pod) (Workload, error) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return Workload{Namespace: pod.Namespace, BarePod: pod}, nil
	}
	return r.OfOwner(ctx, pod.Namespace, *owner)
}

// OfOwner finds the workload of the pods that an owner controls.
func (r OwnerResolver) OfOwner(ctx context.Context, namespace string, owner metav1.OwnerReference) (Workload, error) {
	key := referenceOf(namespace, owner)
	if found, ok := r.seen[key]; ok {
		return found, nil
	}
	if err, ok := r.tooLarge[key]; ok {
		return Workload{}, err
	}
	found, err := r.resolve(ctx, namespace, owner)
	switch {
	case err == nil:
		r.seen[key] = found
	case errors.Is(err, slim.ErrTooLarge):
		r.tooLarge[key] = err
	}
	return found, err
}

// maxLookups bounds the owners that [OwnerResolver.Owns] looks up. No job that can be restarted has more pods.
const maxLookups = 5000

// Owns reports whether a pod is one of a job's, by its owners where the job's own objects do not tell. After very many owners it
// is an error: a pod that is taken for another's would run on beside those that replace it.
func (r OwnerResolver) Owns(ctx context.Context, job restart.Job, pod metav1.Object) (bool, error) {
	owner := metav1.GetControllerOf(pod)
	switch {
	case owner == nil:
		return false, nil
	case job.Owns(pod) || !job.OtherControllers:
		return job.Owns(pod), nil
	case !isPod(*owner) && !r.knows(*owner):
		return false, nil
	}
	if _, found := r.seen[referenceOf(pod.GetNamespace(), *owner)]; !found && len(r.seen) >= maxLookups {
		return false, fmt.Errorf("the pods with the labels of %s %s have more than %d owners", job.GVK.Kind, job.Key(), maxLookups)
	}
	w, err := r.OfOwner(ctx, pod.GetNamespace(), *owner)
	return err == nil && w.UID() == job.Object.GetUID() && w.Owns(pod), err
}

// resolve follows controller references up to the first object without a controller or of unknown kind.
func (r OwnerResolver) resolve(ctx context.Context, namespace string, owner metav1.OwnerReference) (Workload, error) {
	top := Workload{Namespace: namespace}
	for range maxOwners {
		top.Owners = append(top.Owners, owner)
		if isPod(owner) { // the leader of a LeaderWorkerSet's group owns its workers
			// Their StatefulSet has the leader's name (sigs.k8s.io/lws pkg/controllers, constructWorkerStatefulSetApplyConfiguration).
			if n := len(top.Owners); n != 2 || top.Owners[0].Name != owner.Name {
				top.forged = true
			}
			up, err := r.ownerOfPod(ctx, namespace, owner)
			if err != nil || up == nil {
				return Workload{}, err
			}
			owner = *up
			continue
		}
		k, known := Find(r.kinds, owner.APIVersion, owner.Kind)
		if !known {
			if top.Job != nil || !belongsToNode(owner) {
				top.Unsupported = &owner
			}
			return top, nil
		}
		there, err := r.readOwner(ctx, k, namespace, owner)
		if err != nil {
			return Workload{}, err
		}
		if there == nil {
			// The owner is gone, and the garbage collector takes what it owned.
			return Workload{}, nil
		}
		job := *there
		if below := top.Job; below != nil && job.Templates == nil { // a kind whose objects have no templates
			job.Jobs, job.Templates = below.Jobs, below.Templates
		}
		if len(top.Owners) == 1 {
			top.direct = job.Controllers[owner.UID]
		}
		top.Kind, top.Job = k, &job
		up := metav1.GetControllerOf(job.Object)
		if up == nil {
			return top, nil
		}
		owner = *up
	}
	top.Unsupported = &owner // a circle, or no kind that is known here
	return top, nil
}

// knows reports whether an owner is of a kind that is restarted, or of one below such a kind.
func (r OwnerResolver) knows(owner metav1.OwnerReference) bool {
	_, known := Find(r.kinds, owner.APIVersion, owner.Kind)
	return known
}

func isPod(owner metav1.OwnerReference) bool { return owner.APIVersion == "v1" && owner.Kind == "Pod" }

// mayExist reports whether an object may have the name of an owner. For others the client does not ask, but answers with an error, as if
// the API server were away.
func mayExist(owner metav1.OwnerReference) bool {
	return len(content.IsPathSegmentName(owner.Name)) == 0
}

// readOwner reads an owner of kind k, once; nil if it is gone.
func (r OwnerResolver) readOwner(ctx context.Context, k Kind, namespace string, owner metav1.OwnerReference) (*restart.Job, error) {
	key := referenceOf(namespace, owner)
	if job, ok := r.read[key]; ok || !mayExist(owner) {
		return job, nil
	}
	job, err := k.Read(ctx, r.reader, client.ObjectKey{Namespace: namespace, Name: owner.Name})
	switch {
	case Gone(err), err == nil && job.Object.GetUID() != owner.UID:
		r.read[key] = nil
		return nil, nil //nolint:nilnil // nothing is there
	case err != nil:
		return nil, err
	}
	if err := r.keep(key, &job); err != nil {
		return nil, err
	}
	return &job, nil
}

// ownerOfPod returns the controller of a pod that controls others; nil if there is none.
func (r OwnerResolver) ownerOfPod(ctx context.Context, namespace string, owner metav1.OwnerReference) (*metav1.OwnerReference, error) {
	if !mayExist(owner) {
		return nil, nil //nolint:nilnil // nothing is there
	}
	var pod metav1.PartialObjectMetadata
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	err := r.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, &pod)
	if Gone(err) || err == nil && pod.UID != owner.UID {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", namespace, owner.Name, err)
	}
	return metav1.GetControllerOf(&pod), nil
}

// belongsToNode reports whether an owner's pods belong to their node, so that none of them can move.
func belongsToNode(owner metav1.OwnerReference) bool {
	switch owner.APIVersion + "/" + owner.Kind {
	case "apps/v1/DaemonSet", "v1/Node":
		return true
	}
	return false
}
