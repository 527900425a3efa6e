package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// PolicyInForce reads the policy from the file or, without one, from the ConfigMap that the remediator's pods mount. It is nil,
// with the reason, when it cannot be read.
func (c *Target) PolicyInForce(ctx context.Context, api client.Client, file string) (p *policy.Policy, from string, err error) {
	if file != "" {
		opened, err := policy.Open(file)
		if err != nil {
			return nil, "", err
		}
		return opened.Policy(), file, nil
	}
	var pods corev1.PodList
	if err := api.List(ctx, &pods, client.InNamespace(c.Namespace), client.MatchingLabels{LabelName: quarantine.ControllerName}); err != nil {
		return nil, fmt.Sprintf("the remediator's pods cannot be listed (%v); name the policy with -f", err), nil
	}
	for _, pod := range pods.Items {
		for _, volume := range pod.Spec.Volumes {
			if volume.ConfigMap == nil {
				continue
			}
			object, err := c.Read(ctx, api, volume.ConfigMap.Name)
			if err != nil {
				return nil, "", err
			}
			for _, text := range PolicyTexts(object) {
				p, err := policy.Parse([]byte(text))
				if err != nil {
					return nil, fmt.Sprintf("the policy in ConfigMap %s is invalid (%v); name another one with -f", volume.ConfigMap.Name, err), nil
				}
				return p, "ConfigMap " + volume.ConfigMap.Name, nil
			}
		}
	}
	return nil, fmt.Sprintf("no pod of the remediator in namespace %s mounts a policy; name one with -f", c.Namespace), nil
}

// PolicyTexts are the policies in a ConfigMap.
func PolicyTexts(object *corev1.ConfigMap) []string {
	if object == nil {
		return nil
	}
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(object.Data)) {
		if strings.Contains(object.Data[key], "kind: "+policy.Kind) {
			texts = append(texts, object.Data[key])
		}
	}
	return texts
}

// VisitsNodes reports whether a policy asks for Jobs on nodes, or for the removal of the taint of new ones.
func VisitsNodes(p *policy.Policy) bool {
	return p.Repair != nil || len(p.Sweeps) > 0 || p.FirstCheck != nil || slices.ContainsFunc(p.Rules,
		func(r policy.Rule) bool { return r.Validate })
}
