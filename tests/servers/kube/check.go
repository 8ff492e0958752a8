package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// strategies are what the API server runs when an object of a kind is created: defaults, then validation.
var strategies = map[string]rest.RESTCreateStrategy{
	"ConfigMap":           configmap.Strategy,
	"CronJob":             cronjob.Strategy,
	"Deployment":          deployment.Strategy,
	"Job":                 job.Strategy,
	"PodDisruptionBudget": poddisruptionbudget.Strategy,
	"Role":                role.Strategy,
	"RoleBinding":         rolebinding.Strategy,
	"Service":             service.Strategy,
	"ServiceAccount":      serviceaccount.Strategy,
}

// check reads manifests, and returns an error for what an API server would refuse: unknown fields, wrong values, and
// pods that the pod security standard "restricted" forbids. It prints the kind and name of each object.
func check(input io.Reader, output io.Writer) error {
	restricted, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return err
	}
	decoder := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(input))
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if isEmpty(text) {
			continue
		}
		object, kind, err := decoder.Decode(text, nil, nil)
		if err != nil {
			return err
		}
		name := kind.Kind + "/" + object.(metav1.Object).GetName()
		if err := create(object, *kind); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if pod := podOf(object); pod != nil {
			standard := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
			for _, found := range restricted.EvaluatePod(standard, &pod.ObjectMeta, &pod.Spec) {
				if !found.Allowed {
					return fmt.Errorf("%s: %s: %s", name, found.ForbiddenReason, found.ForbiddenDetail)
				}
			}
		}
		fmt.Fprintln(output, name)
	}
}

// isEmpty returns whether a document has only comments.
func isEmpty(document []byte) bool {
	for _, line := range bytes.Split(document, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

// create does what the API server does before it stores a new object.
func create(object runtime.Object, kind schema.GroupVersionKind) error {
	strategy, found := strategies[kind.Kind]
	if !found {
		return errors.New("this kind is not among the strategies")
	}
	legacyscheme.Scheme.Default(object)
	internal, err := legacyscheme.Scheme.ConvertToVersion(object, runtime.InternalGroupVersioner)
	if err != nil {
		return err
	}
	meta := internal.(metav1.Object)
	meta.SetNamespace(metav1.NamespaceDefault)
	rest.FillObjectMetaSystemFields(meta)
	ctx := request.WithNamespace(request.NewContext(), metav1.NamespaceDefault)
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, Verb: "create", APIGroup: kind.Group, APIVersion: kind.Version})
	return rest.BeforeCreate(strategy, ctx, internal)
}

// podOf returns the pod template of an object, or nil.
func podOf(object runtime.Object) *corev1.PodTemplateSpec {
	switch object := object.(type) {
	case *appsv1.Deployment:
		return &object.Spec.Template
	case *batchv1.CronJob:
		return &object.Spec.JobTemplate.Spec.Template
	case *batchv1.Job:
		return &object.Spec.Template
	}
	return nil
}
