package preflight

import (
	"time"

	"k8s.io/client-go/util/flowcontrol"
)

// rateLimits of a namespace keep a flood of its reports from delaying the runs of other namespaces, and from causing a flood
// of Events.
type rateLimits struct {
	validations, refusals flowcontrol.PassiveRateLimiter
}

const (
	// A validation asks the API server for a pod and its job. At this rate the largest run takes about a minute, and a flood
	// takes half of the controller's time.
	validationsPerSecond, validationBurst = 150, 500
	// A run that waits for its namespace's rate limit waits longer each time, so that thousands of them do not fill the queue.
	firstBackoff, longestBackoff = time.Second, time.Minute
	// listShare is the part of the time that the lists of the pods of one namespace may take: of 240 MB of pods one takes seconds.
	listShare = 20
	// A refusal that is not reported because of this limit is reported when the run is reconciled again.
	refusalsPerSecond, refusalBurst = 0.5, 50
)

// rateLimitsOf a namespace. Reports come from listed namespaces only, so there are no more limits than these.
func (c *Controller) rateLimitsOf(namespace string) rateLimits {
	l, ok := c.rateLimits[namespace]
	if !ok {
		l = rateLimits{
			validations: flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(validationsPerSecond, validationBurst, c.clock),
			refusals:    flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(refusalsPerSecond, refusalBurst, c.clock),
		}
		c.rateLimits[namespace] = l
	}
	return l
}
