package main

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	aggregator "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

var (
	kind     = coordinationv1.Lease{}.OpenAPIModelName()
	kindList = coordinationv1.LeaseList{}.OpenAPIModelName()
	kindSpec = coordinationv1.LeaseSpec{}.OpenAPIModelName()
)

// definitions describes Leases. The server needs that to track the manager of each field. Kubernetes' own
// definitions cover all kinds in 4 MB of source. The aggregator's include those of the metadata.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	found := aggregator.GetOpenAPIDefinitions(ref)
	to := func(name string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(name)}}
	}
	time := to(metav1.MicroTime{}.OpenAPIModelName())
	text, number := *spec.StringProperty(), *spec.Int32Property()
	item := to(kind)

	found[kind] = object(map[string]spec.Schema{
		"apiVersion": text,
		"kind":       text,
		"metadata":   to(metav1.ObjectMeta{}.OpenAPIModelName()),
		"spec":       to(kindSpec),
	}, metav1.ObjectMeta{}.OpenAPIModelName(), kindSpec)
	found[kindList] = object(map[string]spec.Schema{
		"apiVersion": text,
		"kind":       text,
		"metadata":   to(metav1.ListMeta{}.OpenAPIModelName()),
		"items":      *spec.ArrayProperty(&item),
	}, metav1.ListMeta{}.OpenAPIModelName(), kind)
	found[kindSpec] = object(map[string]spec.Schema{
		"holderIdentity":       text,
		"leaseDurationSeconds": number,
		"acquireTime":          time,
		"renewTime":            time,
		"leaseTransitions":     number,
		"strategy":             text,
		"preferredHolder":      text,
	}, metav1.MicroTime{}.OpenAPIModelName())
	return found
}

func object(properties map[string]spec.Schema, needs ...string) common.OpenAPIDefinition {
	return common.OpenAPIDefinition{
		Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Type: []string{"object"}, Properties: properties,
		}},
		Dependencies: needs,
	}
}
